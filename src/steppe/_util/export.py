"""Values for other programs: JSON without NaN, and CSV without formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any


def json_safe(x: Any, other: Callable[[Any], Any] = lambda x: x) -> Any:
    """Return a copy of a value that `json.dumps(..., allow_nan=False)` takes.

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


FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # first characters of a formula, in full width too


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the columns of some rows below a header; missing values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """Prefix a string that would start a formula with an apostrophe; numbers stay, also as strings."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
