"""A study as its folder keeps it, for reports that are asked for by the folder and not by the study's file."""

from __future__ import annotations

from pathlib import Path

from .cell import Cell
from .plan import STORE, Rule, Study
from .run import ABOUT
from .store import Store
from .table import Table


def study_in(folder: Path) -> tuple[Study, list[Cell], Table]:
    """The study in a folder, its cells, and what is known of them; it can be told of, and not be run."""
    if not (folder / STORE).exists():
        raise FileNotFoundError(f"there is no study in {folder}: it has no {STORE}. `steppe study run` makes one")
    with Store.reading(folder / STORE) as store:
        notes, table = store.notes(), store.table()
    about = notes.get(ABOUT)
    if about is None:
        raise ValueError(f"{folder / STORE} does not say what its study is: give the study's YAML file")
    study = Study(
        about["name"],
        measures=tuple(about["measures"]),
        targets=tuple(about["targets"]),
        groups=tuple(about["groups"]),
        admission=tuple(Rule.of(rule) for rule in about["admission"]),
        out=str(folder),
    )
    configs = {run.key: run.config for run in table.runs}
    cells = [
        Cell(key, name, configs.get(key, {}), dict(zip(study.groups, values, strict=True)))
        for key, name, values in about["cells"]
    ]
    return study, cells, table
