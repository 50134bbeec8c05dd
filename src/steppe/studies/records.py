"""The records of a study as one CSV file, to merge studies of several machines and to keep results with code.

One row per run: its key and configuration, its numbers, and the software, machine and day. Numbers are written in full,
so that a table made from the file is the table of the study. Files of several machines can be merged and read back.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .._util.digests import packed_bits, unpacked_bits
from .._util.files import atomic_write
from .._util.formats import csv_text, from_json
from ..training.config import Config
from .cell import WEIGHTS_OF, Cell, as_stored, fingerprint, own_settings, weights_file
from .plan import Study
from .protocol import EPOCH
from .result import StudyResult
from .run import result_of
from .schema import text_of
from .selection import planned_cells, previewed_cells
from .store import Store
from .table import Table

RECORDS = "records.csv"
HEAD = ("key", "name", "stage", "state", "config", "groups", "origin", "error")
ROWS = "rows"  # one bit per test row
LARGEST = 1 << 26  # characters of one field: curves of a long run


def stored_result(study: Study) -> StudyResult:
    """The result of a study from what is stored, without computing anything; of a pool, without its checkpoints."""
    with Store.reading(study.store) as store:
        return result_of(study, stored_cells(study, store.table()), store)


def with_recorded_weights(study: Study, origins: Iterable[Mapping[str, str]]) -> Study:
    """The study for a report on records with these origins: their initial weights need not be here, or may differ.

    Raises ValueError if they started from several files of one name, and none of these is here.
    """
    found: dict[str, set[str]] = {}
    for name, digest in (entry for origin in origins for entry in origin.items()):
        if name.startswith(WEIGHTS_OF):
            found.setdefault(name.removeprefix(WEIGHTS_OF), set()).add(digest)
    weights = {}
    for init, digests in found.items():
        here = fingerprint(init) if weights_file(init).is_file() else ""
        if here not in digests and len(digests) > 1:
            raise ValueError(
                f"the records start from {len(digests)} different files that were called {init}, and none of them is "
                "here: put one there, or give the records of one file"
            )
        weights[init] = here if here in digests else min(digests)
    return replace(study, weights=weights)


def number_of_cells(study: Study) -> int:
    """How many cells a study has; its initial weights need not be here."""
    return len(previewed_cells(replace(study, weights={})))


def origins(study: Study) -> list[dict[str, str]]:
    """The machine, the software and the day of every stored run."""
    with Store.reading(study.store) as store:
        return list(store.origins().values())


def write_records(study: Study) -> Path:
    """Write the finished and failed runs of a study's plan to records.csv in its folder."""
    with Store.reading(study.store) as store:
        return _write(study, store)


def _write(study: Study, store: Store) -> Path:
    table, origins = store.table(), store.origins()
    runs = {run.key: run for run in table.runs}
    rows, columns = [], dict.fromkeys(HEAD)
    with_curves = any(EPOCH in spec.columns for spec in study.table)
    for cell in stored_cells(study, table):
        run = runs.get(cell.key)
        if run is None or run.state not in ("done", "failed"):
            continue
        row: dict[str, Any] = {"key": cell.key, "name": cell.name, "stage": cell.stage, "state": run.state}
        row |= {"config": text_of(own_settings(cell.config)), "groups": text_of(cell.groups)}
        row |= {"origin": text_of(origins.get(cell.key, {})), "error": run.error}
        for name, value in run.targets.items():
            row |= {f"target.{name}": value, f"target.{name}.stderr": run.target_errors.get(name)}
        for name, e in run.measures.items():
            row |= {f"measure.{name}": text_of(asdict(e))}
        row |= {f"meta.{name}": value for name, value in run.meta.items()}
        row |= {ROWS: packed_bits(run.rows)} if run.rows is not None else {}
        row |= {"curves": text_of(store.curves(cell.key))} if with_curves else {}
        rows.append(row)
        columns |= dict.fromkeys(row)
    with atomic_write(study.folder / RECORDS) as file:
        file.write(csv_text(list(columns), rows).encode())
    return study.folder / RECORDS


def read_records(paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """The rows of files, or of records.csv in folders, by key; a finished run replaces a failed one."""
    rows: dict[str, dict[str, str]] = {}
    for path in paths:
        file = Path(path) / RECORDS if Path(path).is_dir() else Path(path)
        csv.field_size_limit(min(LARGEST, sys.maxsize))
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(opened)
            wrong = [c for c in HEAD if c not in (reader.fieldnames or [])]
            if wrong:
                raise ValueError(f"{file} has no column {wrong[0]}: records are written by `steppe reproduce`")
            for row in reader:
                if row["key"] not in rows or rows[row["key"]]["state"] != "done":
                    rows[row["key"]] = row
    return rows


def import_records(study: Study, rows: Mapping[str, Mapping[str, str]]) -> tuple[int, int]:
    """Add records to the study's store as if they had been computed here; records that it has stay.

    Returns
    -------
    tuple of int
        The number of new records, and of those that the study's plan does not have.

    """
    new, used = 0, set()
    study.folder.mkdir(parents=True, exist_ok=True)
    with Store.open(study.store) as store:
        for _ in range(1 if study.select is None else 2):  # the second stage follows from the first
            stored = store.states()
            if study.pool is None:
                planned = planned_cells(study, store.table())
            else:  # the checkpoints may be elsewhere: what was measured of them is in the records
                planned = [_pool_cell(row) for row in rows.values()]
            for cell in planned:
                if cell.key in rows:
                    used.add(cell.key)
                    if stored.get(cell.key) != "done":
                        new += 1
                        _import(store, cell, rows[cell.key])
    return new, len(rows) - len(used)


def stored_cells(study: Study, table: Table) -> list[Cell]:
    """The cells of a study as far as its records know them; the checkpoints of a pool need not be there."""
    if study.pool is None:
        return planned_cells(study, table)
    return [Cell(run.key, run.name, {**asdict(Config()), **run.config}, run.groups) for run in table.runs]


def _pool_cell(row: Mapping[str, str]) -> Cell:
    config = {**asdict(Config()), **from_json(row["config"], RECORDS)}
    return Cell(row["key"], row["name"], config, from_json(row["groups"], RECORDS))


def _import(store: Store, cell: Cell, row: Mapping[str, str]) -> None:
    if from_json(row["config"], RECORDS) != json.loads(text_of(own_settings(cell.config))):
        raise ValueError(f"the record {cell.key} has another configuration than the cell of that key: was it edited?")
    store.add([as_stored(cell)])
    if row["state"] == "failed":
        store.fail(cell.key, row["error"])
        return
    numbers: dict[str, dict[str, float]] = {"target": {}, "meta": {}}
    errors: dict[str, float] = {}
    measures: dict[str, Any] = {}
    for column, text in row.items():
        role, _, name = (column or "").partition(".")
        if not text or not name:
            continue
        if role == "measure":
            measures[name] = from_json(text, RECORDS)
        elif role == "target" and name.endswith(".stderr"):
            errors[name.removesuffix(".stderr")] = float(text)
        elif role in numbers:
            numbers[role][name] = float(text)
    store.record(
        cell.key,
        targets=numbers["target"],
        target_errors=errors,
        measures=measures,
        meta=numbers["meta"],
        curves=from_json(row["curves"], RECORDS) if row.get("curves") else (),
        versions=from_json(row["origin"], RECORDS),
        rows=unpacked_bits(row[ROWS]) if row.get(ROWS) else None,
    )
