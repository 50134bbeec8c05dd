"""Values as a study's store holds them: estimates as columns, anything else as JSON, and the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from math import isnan
from typing import Any

from .._util.formats import json_safe


def columns_of(estimate: Any) -> tuple[Any, ...]:
    """An estimate, or a mapping like one, as the columns from value to complete."""
    e = asdict(estimate) if is_dataclass(estimate) and not isinstance(estimate, type) else estimate
    if not isinstance(e, Mapping) or "value" not in e:
        raise TypeError(f"a record has a value, and perhaps stderr, n, kind and cost; {estimate!r} has not")
    cost = dict(e.get("cost") or {})
    seconds = cost.pop("seconds", e.get("seconds"))  # in a column of its own: the rest is equal in many runs
    value, stderr, seconds = (_number(v) for v in (e["value"], e.get("stderr"), seconds))
    head = (value, stderr, int(e.get("n", 1)), str(e.get("kind", "")), text_of(cost), seconds)
    return (*head, str(e.get("note", "")), int(e.get("complete", True)))


def text_of(value: Any) -> str:
    """JSON that is equal for equal values; numbers that are not finite are null."""
    return json.dumps(json_safe(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def time_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _number(value: Any) -> float | None:
    return None if value is None or isnan(value) else float(value) + 0.0  # SQLite has no -0.0
