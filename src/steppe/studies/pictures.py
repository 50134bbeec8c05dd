"""The pictures of a study (spectra, landscapes, ensembles): which are missing, and how a worker computes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .cell import Cell, Task, short_hash
from .plan import Study
from .show import WHICH
from .table import Run, Table

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Dataset
    from ..measures.objective import Objective
    from ..training.problem import Task as Problem

    Member = tuple[nn.Module, Dataset, Problem]

SPECTRUM, LANDSCAPE, ENSEMBLE = "spectrum/", "landscape/", "ensemble/"
"""Prefixes of notes in a store, before the key of a run or of an ensemble."""

# Ghorbani et al. 2019 use 10 starts of 90 steps; 4 of 80 show the same large eigenvalues of small networks
STARTS, STEPS = 4, 80
SPAN, POINTS = 1.0, 21  # Li et al. 2018: up to the norm of each filter


def open_pictures(
    study: Study, planned: Sequence[Cell], counted: Table, notes: Mapping[str, Any], again: bool = False
) -> list[Task]:
    """Tasks for the missing pictures of the runs that count; with `again`, also for those that failed."""
    cells, runs = {cell.key: cell for cell in planned}, {run.key: run for run in counted.runs}

    def missing(note: str, run: Run) -> bool:
        return note not in notes and (again or note not in run.failures)

    def task(key: str, pictures: Sequence[str] = (), members: Sequence[Task] = ()) -> Task:
        return Task(cells[key], study.run_folder(key), (), (), pictures, members)

    wanted: dict[str, list[str]] = {}
    target = next((name for name in study.targets if name in counted.targets), None)
    measure = next((name for name in study.measures if name in counted.measures), None)
    for prefix, which in ((SPECTRUM, study.show.spectrum), (LANDSCAPE, study.show.landscape)):
        for key, roles in chosen(counted, target, measure).items():
            if set(roles) & set(which) and missing(prefix + key, runs[key]):
                wanted.setdefault(key, []).append(prefix + key)
    tasks = [task(key, names) for key, names in wanted.items()]
    for members in alike(counted.runs) if study.show.ensembles else ():
        note = ENSEMBLE + short_hash({"members": sorted(run.key for run in members)})
        if missing(note, members[0]):
            tasks.append(task(members[0].key, [note], [task(run.key) for run in members]))
    return tasks


def chosen(counted: Table, target: str | None, measure: str | None) -> dict[str, list[str]]:
    """The roles of runs by key: best and worst by the target, flattest and sharpest by the measure."""
    roles: dict[str, list[str]] = {}
    columns = {
        ("best", "worst"): [run.targets.get(target or "") for run in counted.runs],
        ("flattest", "sharpest"): [m.value if (m := run.measures.get(measure or "")) else None for run in counted.runs],
    }
    for (low, high), values in columns.items():
        known = [(v, run.key) for v, run in zip(values, counted.runs, strict=True) if v is not None and isfinite(v)]
        if known:  # of equal values the first in the plan
            roles.setdefault(min(known, key=lambda pair: pair[0])[1], []).append(low)
            roles.setdefault(max(known, key=lambda pair: pair[0])[1], []).append(high)
    order = list(WHICH)
    return dict(sorted(roles.items(), key=lambda one: order.index(one[1][0])))


def alike(runs: Iterable[Run]) -> list[list[Run]]:
    """Sets of two or more runs with the same configuration and different seeds."""
    sets: dict[str, list[Run]] = {}
    for run in runs:
        without_seed = {name: value for name, value in run.config.items() if name != "seed"}
        sets.setdefault(json.dumps(without_seed, sort_keys=True), []).append(run)
    # checkpoints of a pool may all have the same configuration and seed: how they differ is unknown
    return [same for same in sets.values() if len({run.config.get("seed") for run in same}) == len(same) > 1]


def draw(task: Task, objective: Objective, members: Sequence[Member]) -> tuple[dict[str, Any], dict[str, str]]:
    """Compute a task's pictures, as notes by name; and the errors of those that failed.

    All runs use the random directions of seed 0, so that pictures of two runs can be compared.
    """
    notes: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name in task.pictures:
        try:
            notes[name] = _note(name, task, objective, members)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    return notes, failures


def _note(name: str, task: Task, objective: Objective, members: Sequence[Member]) -> Any:
    from ..measures.curvature.lanczos import spectral_density
    from ..measures.curvature.operator import Curvature
    from ..measures.directions import random_plane
    from ..measures.landscape import slice_2d
    from .report.notes import landscape_note, spectrum_note

    if name.startswith(ENSEMBLE):
        return _ensemble([one.cell.key for one in task.members], members)
    if name.startswith(SPECTRUM):
        return spectrum_note(spectral_density(Curvature(objective), STARTS, STEPS))
    plane = slice_2d(objective, *random_plane(objective, seed=0), SPAN, POINTS, tick=lambda done, total: None)
    if not plane.complete:
        raise KeyboardInterrupt  # an incomplete picture would be stored and never be completed
    return landscape_note(plane)


def _ensemble(keys: Sequence[str], members: Sequence[Member]) -> Any:
    """The scores of an ensemble on the test rows."""
    from torch import cat, equal

    from ..ensembles.scores import logits, scored
    from .report.notes import ensemble_note

    rows = members[0][1]
    if not rows.classes:
        raise ValueError("ensembles are scored by classes, and these targets are numbers")
    if not all(equal(rows.targets, other.targets) for _, other, _ in members):
        raise ValueError("the members are tested on different rows: give them one data_seed")
    outputs = cat([logits([model], own, problem) for model, own, problem in members])  # each standardises its inputs
    return ensemble_note(scored(outputs, rows.targets.cpu()), keys)
