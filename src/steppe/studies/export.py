"""A study's table for other programs: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any, Literal

from .._util.csv_text import csv_text
from .._util.files import atomic_write
from .._util.names import unknown
from .table import Run, Table

Shape = Literal["runs", "outcomes"]
Row = dict[str, Any]


def export_table(table: Table, path: str | os.PathLike[str], shape: Shape = "runs") -> Path:
    """Writes a table to a file that ends in .csv or .parquet: one row a run, or one row an outcome.

    Rows of outcomes have all that is known, rows of runs only values and errors. A number that is missing is an empty
    field in CSV and null in Parquet.
    """
    place = Path(path)
    if shape not in ROWS:
        raise ValueError(unknown("shape of a table", shape, ROWS))
    if place.suffix not in WRITERS:
        raise ValueError(f"a table is written to a file that ends in {' or '.join(WRITERS)}, not to {str(path)!r}")
    rows = ROWS[shape](table)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    place.parent.mkdir(parents=True, exist_ok=True)
    content = WRITERS[place.suffix](columns, rows)
    with atomic_write(place) as file:
        file.write(content)
    return place


def runs(table: Table) -> list[Row]:
    """One row a run: `config.lr`, `group.augment`, `target.test_error`, `measure.trace` and its `.stderr`."""
    return [_run(run) for run in table.runs]


def _run(run: Run) -> Row:
    row: Row = {"key": run.key, "name": run.name, "state": run.state, "error": run.error}
    row |= {f"config.{name}": _flat(value) for name, value in run.config.items()}
    row |= {f"group.{name}": _flat(value) for name, value in run.groups.items()}
    for name, value in run.targets.items():
        row |= {f"target.{name}": value, f"target.{name}.stderr": run.target_errors.get(name)}
    for name, found in run.measures.items():
        row |= {f"measure.{name}": found.value, f"measure.{name}.stderr": found.stderr}
    return row | {f"meta.{name}": value for name, value in run.meta.items()}


def outcomes(table: Table) -> list[Row]:
    """One row a number: whose it is, what it is, its value and error, its kind and what it took."""
    rows: list[Row] = []
    for run in table.runs:
        whose = {"key": run.key, "run": run.name}
        for name, value in run.targets.items():
            rows.append(
                {**whose, "role": "target", "name": name, "value": value, "stderr": run.target_errors.get(name)}
            )
        for name, e in run.measures.items():
            numbers = {"value": e.value, "stderr": e.stderr, "n": e.n, "kind": e.kind, "seconds": e.seconds}
            more = {"cost": _flat(e.cost), "note": e.note, "complete": e.complete}
            rows.append({**whose, "role": "measure", "name": name, **numbers, **more})
        rows += [{**whose, "role": "meta", "name": name, "value": value} for name, value in run.meta.items()]
    return rows


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (Mapping, list, tuple)) else value


def _csv(columns: list[str], rows: list[Row]) -> bytes:
    return csv_text(columns, ({name: _there(value) for name, value in row.items()} for row in rows)).encode()


def _parquet(columns: list[str], rows: list[Row]) -> bytes:
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "Parquet needs pyarrow, which is not installed: pip install pyarrow, or write .csv"
        ) from error
    made = {name: _of_one_type([_there(row.get(name)) for row in rows]) for name in columns}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(made), file)
    return file.getvalue()


def _of_one_type(column: list[Any]) -> list[Any]:
    """A column as Parquet takes it: whole numbers among others are numbers, and any other mixture is text."""
    kinds = {type(v) for v in column if v is not None}
    if kinds == {int, float}:
        return [None if v is None else float(v) for v in column]
    return column if len(kinds) < 2 else [None if v is None else str(v) for v in column]


def _there(value: Any) -> Any:
    return None if isinstance(value, float) and isnan(value) else value


ROWS = {"runs": runs, "outcomes": outcomes}
WRITERS = {".csv": _csv, ".parquet": _parquet}
