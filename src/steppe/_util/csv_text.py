"""Tables as CSV that a spreadsheet can open: no cell begins a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # how one begins; wide signs too, in East Asian settings


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The columns of some rows, with a line of names above; what a row does not have is left empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(_harmless, columns))
    writer.writerows([_harmless(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """Texts that would begin a formula get an apostrophe before them; numbers, spelled out too, stay numbers."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
