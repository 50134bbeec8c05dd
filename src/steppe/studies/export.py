"""Export of a study's table as CSV, or as Parquet with pyarrow."""

from __future__ import annotations

import io
import os
from dataclasses import asdict
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any, Literal

from .._util.digests import packed_bits
from .._util.extras import explained
from .._util.files import atomic_write
from .._util.formats import csv_text
from .._util.names import unknown
from .statistics.findings import Findings
from .table import Table, as_text

Shape = Literal["runs", "outcomes"]
Row = dict[str, Any]


def export_table(table: Table, path: str | os.PathLike[str], shape: Shape = "runs") -> Path:
    """Write a table to a file.

    Parameters
    ----------
    table : Table
        The runs.
    path : path-like
        A file that ends in .csv or .parquet.
    shape : {"runs", "outcomes"}
        One row per run with values and errors, or one row per outcome with everything known. A missing number is an
        empty field in CSV and null in Parquet.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(f"key {i}", f"run {i}", {"lr": i / 10}, {}, "done", {"test_error": i / 100})
    ...     for i in range(2)
    ... ]
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = steppe.studies.export_table(steppe.studies.Table(runs), f"{folder}/runs.csv")
    ...     path.read_text().splitlines()[-1]
    'key 1,run 1,done,,0.1,0.01,'

    """
    if shape not in ROWS:
        raise ValueError(unknown("shape of a table", shape, ROWS))
    return _write(ROWS[shape](table), path)


def export_findings(findings: Findings, path: str | os.PathLike[str]) -> Path:
    """Write the verdicts of a study to a file.

    Parameters
    ----------
    findings : Findings
        The verdicts.
    path : path-like
        A file that ends in .csv or .parquet: one row per finding and per comparison of methods.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(
    ...         f"{method} {seed}", "", {"method": method, "seed": seed}, {}, "done", {"test_error": error + seed / 100}
    ...     )
    ...     for method, error in [("none", 0.02), ("sam", 0.01)]
    ...     for seed in range(4)
    ... ]
    >>> found = steppe.studies.correlate.findings(steppe.studies.Table(runs))
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = steppe.studies.export_findings(found, f"{folder}/findings.csv")
    ...     path.read_text().splitlines()[-1].split(",")[:4]
    ['comparison', 'sam', 'none', 'test_error']

    """
    predictions = [
        {"kind": "prediction", **asdict(f), "by_group": as_text(asdict(f)["by_group"])} for f in findings.findings
    ]
    return _write([*predictions, *({"kind": "comparison", **asdict(c)} for c in findings.comparisons)], path)


def _write(rows: list[Row], path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    if place.suffix not in WRITERS:
        raise ValueError(f"a table is written to a file that ends in {' or '.join(WRITERS)}, not to {str(path)!r}")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    place.parent.mkdir(parents=True, exist_ok=True)
    content = WRITERS[place.suffix](columns, rows)
    with atomic_write(place) as file:
        file.write(content)
    return place


def runs(table: Table) -> list[Row]:
    """One row per run: `config.lr`, `group.augment`, `target.test_error`, `measure.trace` and its `.stderr`, `rows`."""
    rows = []
    for run in table.runs:
        row: Row = {"key": run.key, "name": run.name, "state": run.state, "error": run.error}
        row |= {f"config.{name}": as_text(value) for name, value in run.config.items()}
        row |= {f"group.{name}": as_text(value) for name, value in run.groups.items()}
        for name, value in run.targets.items():
            row |= {f"target.{name}": value, f"target.{name}.stderr": run.target_errors.get(name)}
        for name, e in run.measures.items():
            row |= {f"measure.{name}": e.value, f"measure.{name}.stderr": e.stderr}
        row |= {f"meta.{name}": value for name, value in run.meta.items()}
        rows.append(row | ({"rows": packed_bits(run.rows)} if run.rows is not None else {}))
    return rows


def outcomes(table: Table) -> list[Row]:
    """One row per number: its run, role and name, value and error, kind and cost."""
    rows: list[Row] = []
    for run in table.runs:
        numbers: list[tuple[str, str, Row]] = [
            ("target", name, {"value": value, "stderr": run.target_errors.get(name)})
            for name, value in run.targets.items()
        ]
        for name, e in run.measures.items():
            head = {"value": e.value, "stderr": e.stderr, "n": e.n, "kind": e.kind, "seconds": e.seconds}
            numbers.append(("measure", name, {**head, "cost": as_text(e.cost), "note": e.note, "complete": e.complete}))
        numbers += [("meta", name, {"value": value}) for name, value in run.meta.items()]
        rows += [{"key": run.key, "run": run.name, "role": role, "name": name, **row} for role, name, row in numbers]
    return rows


def _csv(columns: list[str], rows: list[Row]) -> bytes:
    return csv_text(columns, ({name: _none_if_nan(value) for name, value in row.items()} for row in rows)).encode()


def _parquet(columns: list[str], rows: list[Row]) -> bytes:
    with explained():
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    data = {name: _of_one_type([_none_if_nan(row.get(name)) for row in rows]) for name in columns}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(data), file)
    return file.getvalue()


def _of_one_type(column: list[Any]) -> list[Any]:
    """A column with one type, for Parquet: integers among floats become floats, any other mixture becomes text."""
    kinds = {type(v) for v in column if v is not None}
    if kinds == {int, float}:
        return [None if v is None else float(v) for v in column]
    return column if len(kinds) < 2 else [None if v is None else str(v) for v in column]


def _none_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and isnan(value) else value


ROWS = {"runs": runs, "outcomes": outcomes}
WRITERS = {".csv": _csv, ".parquet": _parquet}
