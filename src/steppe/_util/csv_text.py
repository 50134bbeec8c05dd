"""CSV text that is safe to open in a spreadsheet: no cell starts a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # first characters of a formula, in full width too


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The columns of some rows below a header; missing values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """Prefixes a text that would start a formula with an apostrophe; numbers stay, also as text."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
