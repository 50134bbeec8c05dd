"""Training curves, as few and as short numbers as a picture needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..store import Store
from ..table import Table

POINTS = 60  # of one curve: more do not show at the width of a page
NUMBERS = 150_000  # of all curves together: about a megabyte
FEWEST = 8
NOT_DRAWN = {"epoch", "step", "passes", "skipped", "seconds", "images_per_second", "evaluation_seconds"}


def curves(store: Store, table: Table) -> dict[str, Any]:
    """For each run what its epochs recorded, thinned; None for a run without records."""
    records = [store.curves(run.key) for run in table.runs]
    metrics = list(dict.fromkeys(name for rows in records for row in rows for name in row if _drawn(name, row[name])))
    kept = sum(bool(rows) for rows in records)
    points = min(POINTS, max(FEWEST, NUMBERS // max(1, kept * (len(metrics) + 1))))
    return {"metrics": metrics, "runs": [_thinned(rows, metrics, points) if rows else None for rows in records]}


def _drawn(name: str, value: Any) -> bool:
    return name not in NOT_DRAWN and isinstance(value, (int, float)) and not isinstance(value, bool)


def _thinned(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], points: int) -> dict[str, list[Any]]:
    """Evenly over the epochs, the first and the last among them; metrics that this run has."""
    n = len(rows)
    chosen = rows if n <= points else [rows[round(i * (n - 1) / (points - 1))] for i in range(points)]
    found: dict[str, list[Any]] = {"epoch": [row.get("epoch", i) for i, row in enumerate(chosen)]}
    for name in metrics:
        values = [row.get(name) for row in chosen]
        if any(v is not None for v in values):
            found[name] = [float(f"{v:.5g}") if isinstance(v, float) else v for v in values]
    return found
