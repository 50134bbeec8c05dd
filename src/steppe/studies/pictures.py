"""The pictures of a study (spectra, landscapes, ensembles): which are missing, and how a worker computes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .cell import Cell, Task, short_hash
from .grid import STRATEGY
from .plan import Study
from .pool import Pool
from .protocol import WHICH
from .table import Run, Table

if TYPE_CHECKING:
    from ..measures.objective import Objective
    from .work import Trained

SPECTRUM, LANDSCAPE, ENSEMBLE = "spectrum/", "landscape/", "ensemble/"
"""Prefixes of notes in a store, before the key of a run or of an ensemble. `LANDSCAPE` is that of single
landscapes: those that users add, and those that were stored before runs were compared at one radius."""
COMPARISON = "landscapes/"
"""Prefix of landscapes that are compared, before the kind of their directions and a hash of the runs."""

KINDS = ("eigenvectors", "random")  # of `measures.comparison`, which needs torch
# Ghorbani et al. 2019 use 10 starts of 90 steps; 4 of 80 show the same large eigenvalues of small networks
STARTS, STEPS = 4, 80
POINTS = 21  # per axis, as in Li et al. 2018


def open_pictures(
    study: Study, planned: Sequence[Cell], pool: Pool, notes: Mapping[str, Any], again: bool = False
) -> list[Task]:
    """Tasks for the missing pictures of the runs that count; with `again`, also for those that failed.

    Cells that are ensembles have no pictures: those show one model each.
    """
    counted = Table([run for run in pool.used if STRATEGY not in run.config])
    cells, runs = {cell.key: cell for cell in planned}, {run.key: run for run in counted.runs}

    def missing(note: str, run: Run) -> bool:
        return note not in notes and (again or note not in run.failures)

    def task(key: str, pictures: Sequence[str] = (), members: Sequence[Task] = ()) -> Task:
        return Task(cells[key], study.run_folder(key), (), (), pictures, members)

    target = next((name for name in study.targets if name in counted.targets), None)
    measure = next((name for name in study.measures if name in counted.measures), None)
    roles = roles_of(counted, target, measure)
    tasks = []
    for key in _with_roles(roles, study.show.spectrum):
        note = notes.get(SPECTRUM + key)
        as_curve = isinstance(note, Mapping) and "nodes" not in note  # earlier notes: smoothed by 1 % of its own range
        if missing(SPECTRUM + key, runs[key]) or as_curve:
            tasks.append(task(key, [SPECTRUM + key]))
    compared = _with_roles(roles, study.show.landscape)
    if compared:  # one task for all of them: the radius of each depends on the others
        name = short_hash({"runs": sorted(compared)})
        names = [n for n in (f"{COMPARISON}{kind}/{name}" for kind in KINDS) if missing(n, runs[compared[0]])]
        tasks += [task(compared[0], names, [task(key) for key in compared])] if names else []
    for members in seed_ensembles(counted.runs) if study.show.ensembles else ():
        note = ENSEMBLE + short_hash({"members": sorted(run.key for run in members)})
        if missing(note, members[0]):
            tasks.append(task(members[0].key, [note], [task(run.key) for run in members]))
    return tasks


def _with_roles(roles: Mapping[str, Sequence[str]], which: Sequence[str]) -> list[str]:
    return [key for key, own in roles.items() if set(own) & set(which)]


def roles_of(counted: Table, target: str | None, measure: str | None) -> dict[str, list[str]]:
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


def seed_ensembles(runs: Iterable[Run]) -> list[list[Run]]:
    """Sets of two or more runs with the same configuration and different seeds."""
    sets: dict[str, list[Run]] = {}
    for run in runs:
        without_seed = {name: value for name, value in run.config.items() if name != "seed"}
        sets.setdefault(json.dumps(without_seed, sort_keys=True), []).append(run)
    # checkpoints of a pool may all have the same configuration and seed: how they differ is unknown
    return [same for same in sets.values() if len({run.config.get("seed") for run in same}) == len(same) > 1]


def draw(task: Task, objective: Objective, members: Sequence[Trained]) -> tuple[dict[str, Any], dict[str, str]]:
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


def _note(name: str, task: Task, objective: Objective, members: Sequence[Trained]) -> Any:
    from ..measures.curvature.lanczos import spectral_density
    from ..measures.curvature.operator import Curvature
    from .report.notes import spectrum_note

    if name.startswith(SPECTRUM):
        return spectrum_note(spectral_density(Curvature(objective), STARTS, STEPS))
    keys = [one.cell.key for one in task.members]
    return _ensemble(keys, members) if name.startswith(ENSEMBLE) else _comparison(name.split("/")[1], keys, members)


def _comparison(kind: Any, keys: Sequence[str], members: Sequence[Trained]) -> Any:
    """The rise of the loss around each run, in planes of one radius."""
    from ..measures.comparison import comparable_slices, directions_of
    from .report.notes import comparison_note

    objectives = [member.objective() for member in members]
    directions = [directions_of(objective, kind) for objective in objectives]
    planes = comparable_slices(objectives, directions, POINTS, tick=lambda done, total: None)
    if len(planes) < len(members) or not all(plane.complete for plane in planes):
        raise KeyboardInterrupt  # an incomplete picture would be stored and never be completed
    return comparison_note(kind, keys, planes)


def _ensemble(keys: Sequence[str], members: Sequence[Trained]) -> Any:
    """The scores of an ensemble on the test rows."""
    from torch import cat, equal

    from ..ensembles.scores import scored
    from ..ensembles.summary import logits
    from .report.notes import ensemble_note

    rows = members[0].splits.test
    if not rows.classes:
        raise ValueError("ensembles are scored by classes, and these targets are numbers")
    if not all(equal(rows.targets, member.splits.test.targets) for member in members):
        raise ValueError("the members are tested on different rows: give them one data_seed")
    outputs = cat([logits([one.model], one.splits.test, one.problem) for one in members])  # own standardisation
    return ensemble_note(scored(outputs, rows.targets.cpu()), keys)
