"""Making the pictures of a run, and of an ensemble of runs, as notes that a store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import cat, equal, nn

from ..data.dataset import Dataset
from ..ensembles.scores import logits, scored
from ..measures.curvature.density import spectral_density
from ..measures.curvature.operator import Curvature
from ..measures.directions import random_plane
from ..measures.landscape import slice_2d
from ..measures.objective import Objective
from ..training.problem import Task as Problem
from .cell import Task
from .pictures import ENSEMBLE, SPECTRUM
from .report.attached import ensemble_note, landscape_note, spectrum_note

# Ghorbani et al. 2019 take 10 starts of 90 steps; 4 of 80 show the same large eigenvalues of small networks
STARTS, STEPS = 4, 80
SPAN, POINTS = 1.0, 21  # Li et al. 2018: as far as every filter is long

Member = tuple[nn.Module, Dataset, Problem]


def drawn(task: Task, objective: Objective, members: Sequence[Member]) -> tuple[dict[str, Any], dict[str, str]]:
    """The pictures that a task asks for, by the names of their notes; and why others could not be made.

    Random directions are those of seed 0 for all runs, so that pictures of two of them can be compared.
    """
    found: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name in task.pictures:
        try:
            found[name] = _one(name, task, objective, members)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    return found, failures


def _one(name: str, task: Task, objective: Objective, members: Sequence[Member]) -> Any:
    if name.startswith(ENSEMBLE):
        return _ensemble([one.cell.key for one in task.members], members)
    if name.startswith(SPECTRUM):
        return spectrum_note(spectral_density(Curvature(objective), STARTS, STEPS))
    plane = slice_2d(objective, *random_plane(objective, seed=0), SPAN, POINTS, tick=lambda done, total: None)
    if not plane.complete:
        raise KeyboardInterrupt  # what is kept is whole, so that it need not be made again
    return landscape_note(plane)


def _ensemble(keys: Sequence[str], members: Sequence[Member]) -> Any:
    """What members of one configuration come to together, on the test rows."""
    rows = members[0][1]
    if not rows.classes:
        raise ValueError("ensembles are scored by classes, and these targets are numbers")
    if not all(equal(rows.targets, other.targets) for _, other, _ in members):
        raise ValueError("the members are tested on different rows: give them one data_seed")
    said = cat([logits([model], mine, problem) for model, mine, problem in members])  # each standardises as it learnt
    return ensemble_note(scored(said, rows.targets.cpu()), keys)
