"""The pictures that a study still lacks, as tasks for any engine: what is kept already is not made again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from .cell import Cell, Task, digest
from .plan import Study
from .show import WHICH
from .table import Run, Table

SPECTRUM, LANDSCAPE, ENSEMBLE = "spectrum/", "landscape/", "ensemble/"
"""Under these names, with the key of a run or of an ensemble, pictures are notes of a store."""


def open_pictures(
    study: Study, planned: Sequence[Cell], counted: Table, notes: Mapping[str, Any], again: bool = False
) -> list[Task]:
    """What is left to draw of the runs that count; a picture that failed is tried again if asked for."""
    cells, runs = {cell.key: cell for cell in planned}, {run.key: run for run in counted.runs}

    def missing(note: str, run: Run) -> bool:
        return note not in notes and (again or note not in run.failures)

    def task(key: str, pictures: Sequence[str] = (), members: Sequence[Task] = ()) -> Task:
        return Task(cells[key], study.run_folder(key), (), (), pictures, members)

    wanted: dict[str, list[str]] = {}
    target, measure = _first(study.targets, counted.targets), _first(study.measures, counted.measures)
    for prefix, asked in ((SPECTRUM, study.show.spectrum), (LANDSCAPE, study.show.landscape)):
        for key, roles in chosen(counted, target, measure).items():
            if set(roles) & set(asked) and missing(prefix + key, runs[key]):
                wanted.setdefault(key, []).append(prefix + key)
    tasks = [task(key, names) for key, names in wanted.items()]
    for members in alike(counted.runs) if study.show.ensembles else ():
        note = ENSEMBLE + ensemble_key(run.key for run in members)
        if missing(note, members[0]):
            tasks.append(task(members[0].key, [note], [task(run.key) for run in members]))
    return tasks


def chosen(counted: Table, target: str | None, measure: str | None) -> dict[str, list[str]]:
    """The best and the worst run by a target, the flattest and the sharpest by a measure: what each is, by its key."""
    found: dict[str, list[str]] = {}
    columns = {
        ("best", "worst"): [run.targets.get(target or "") for run in counted.runs],
        ("flattest", "sharpest"): [m.value if (m := run.measures.get(measure or "")) else None for run in counted.runs],
    }
    for (low, high), values in columns.items():
        there = [(value, run.key) for value, run in zip(values, counted.runs, strict=True) if value is not None]
        there = [pair for pair in there if isfinite(pair[0])]
        if there:  # of equals the first in the plan
            found.setdefault(min(there, key=lambda pair: pair[0])[1], []).append(low)
            found.setdefault(max(there, key=lambda pair: pair[0])[1], []).append(high)
    ranks = list(WHICH)
    return dict(sorted(found.items(), key=lambda one: ranks.index(one[1][0])))


def alike(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs, two or more at a time, that have one configuration and different seeds."""
    sets: dict[str, list[Run]] = {}
    for run in runs:
        but_seed = {name: value for name, value in run.config.items() if name != "seed"}
        sets.setdefault(json.dumps(but_seed, sort_keys=True), []).append(run)
    # checkpoints of a pool may all say the same of themselves, and then nobody knows how they differ
    return [those for those in sets.values() if len({run.config.get("seed") for run in those}) == len(those) > 1]


def ensemble_key(members: Iterable[str]) -> str:
    """The key of an ensemble: with one more member it is another."""
    return digest({"members": sorted(members)})


def _first(asked: Sequence[str], there: Sequence[str]) -> str | None:
    return next((name for name in asked if name in there), None)
