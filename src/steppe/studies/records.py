"""Rows of a store: what was found becomes rows, and rows become a table of runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from math import isnan, nan
from pathlib import Path
from typing import Any

from .._util.json import json_safe
from .._util.untrusted import from_json
from .table import Measured, Run, Table

# what was finished stays done while somebody adds a measure to it; a failed cell that is tried again is running
STATE = """CASE WHEN EXISTS (SELECT 1 FROM finished WHERE finished.cell = cells.id) THEN 'done'
    WHEN EXISTS (SELECT 1 FROM claims WHERE claims.cell = cells.id) THEN 'running'
    WHEN EXISTS (SELECT 1 FROM failures WHERE failures.cell = cells.id AND failures.name = '') THEN 'failed'
    ELSE 'open' END"""

_OUTCOMES = """SELECT cell, role, name, value, stderr, n, kind, cost, seconds, note, complete
    FROM outcomes ORDER BY cell, role, name"""


def table(db: sqlite3.Connection, where: Path) -> Table:
    """All runs in the order in which they were planned, as of one moment."""
    db.execute("BEGIN")  # so that all queries see the same records
    try:
        cells = db.execute(f"SELECT id, key, name, config, groups, {STATE} FROM cells ORDER BY id").fetchall()
        errors: dict[int, str] = {}
        reasons: dict[int, dict[str, str]] = {}
        for cell, name, error in db.execute("SELECT cell, name, error FROM failures ORDER BY id"):
            if name:
                reasons.setdefault(cell, {})[name] = error
            else:
                errors[cell] = error
        found = _outcomes(db, where)
    finally:
        db.execute("ROLLBACK")
    runs = []
    for cell, key, name, config, groups, state in cells:
        targets, target_errors, measures, meta = found.get(cell, ({}, {}, {}, {}))
        failures = {m: why for m, why in reasons.get(cell, {}).items() if m not in measures}
        error = "" if state == "done" else errors.get(cell, "")
        settings, within = (from_json(text, where) for text in (config, groups))
        runs.append(Run(key, name, settings, within, state, targets, measures, target_errors, meta, failures, error))
    return Table(runs)


Found = tuple[dict[str, float], dict[str, float], dict[str, Measured], dict[str, float]]


def _outcomes(db: sqlite3.Connection, where: Path) -> dict[int, Found]:
    found: dict[int, Found] = {}
    costs: dict[str, Any] = {}  # a few texts stand for many runs: each is read once
    for cell, role, name, value, stderr, n, kind, cost, seconds, note, complete in db.execute(_OUTCOMES):
        if cell not in found:
            found[cell] = ({}, {}, {}, {})
        targets, target_errors, measures, meta = found[cell]
        number = nan if value is None else value
        if role == "measure":
            if cost not in costs:
                costs[cost] = from_json(cost, where)
            error, took = (nan if v is None else v for v in (stderr, seconds))
            measures[name] = Measured(number, error, n, kind, costs[cost], took, note, bool(complete))
        elif role == "target":
            targets[name] = number
            if stderr is not None:
                target_errors[name] = stderr
        else:
            meta[name] = number
    return found


def row(estimate: Any) -> tuple[Any, ...]:
    """An estimate, or a mapping like one, as the columns from value to complete."""
    e = asdict(estimate) if is_dataclass(estimate) and not isinstance(estimate, type) else estimate
    if not isinstance(e, Mapping) or "value" not in e:
        raise TypeError(f"what is recorded has a value, and perhaps stderr, n, kind and cost; {estimate!r} has not")
    cost = dict(e.get("cost") or {})
    seconds = cost.pop("seconds", e.get("seconds"))  # beside the rest, which is the same in many runs
    value, stderr, seconds = (_number(v) for v in (e["value"], e.get("stderr"), seconds))
    head = (value, stderr, int(e.get("n", 1)), str(e.get("kind", "")), text(cost), seconds)
    return (*head, str(e.get("note", "")), int(e.get("complete", True)))


def text(value: Any) -> str:
    """JSON that is the same for equal values; numbers that are not finite are null."""
    return json.dumps(json_safe(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def now() -> str:
    """The time, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _number(value: Any) -> float | None:
    return None if value is None or isnan(value) else float(value) + 0.0  # SQLite has no -0.0
