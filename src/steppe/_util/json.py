"""Values as JSON types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any


def json_safe(x: Any, other: Callable[[Any], Any] = lambda x: x) -> Any:
    """A copy of a value that `json.dumps(..., allow_nan=False)` takes.

    Parameters
    ----------
    x
        Nested mappings, lists, tuples, sets, arrays, strings and numbers. Keys become strings, arrays become lists, and
        numbers that are not finite become None: JSON has no such numbers.
    other
        Converts values of any other type. By default they stay, and `json.dumps` raises.

    """
    if hasattr(x, "tolist"):  # an array, or one number of an array
        x = x.tolist()
    if isinstance(x, Mapping):
        return {str(k): json_safe(v, other) for k, v in x.items()}
    if isinstance(x, (set, frozenset)):
        x = sorted(x, key=str)  # for a reproducible order
    if isinstance(x, (list, tuple)):
        return [json_safe(v, other) for v in x]
    if isinstance(x, float):
        return x if isfinite(x) else None
    return x if x is None or isinstance(x, (int, str)) else other(x)
