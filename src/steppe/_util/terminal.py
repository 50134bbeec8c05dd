"""Printing with control characters escaped: a terminal would act on those in names from files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def line(text: object) -> str:
    """Return a string on one line, with unprintable characters escaped: control codes, line breaks, direction marks."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: object, *, error: bool = False, end: str = "\n") -> None:
    """Print lines on stdout, or on stderr."""
    lines = "\n".join(map(line, str(text).expandtabs().split("\n")))
    print(lines, file=sys.stderr if error else sys.stdout, end=end, flush=error)


def complain(text: object) -> None:
    """Print an error on stderr; indent all lines but the first, so that names cannot fake a message."""
    say(str(text).replace("\n", "\n  "), error=True)


def cell(text: object) -> Text:
    """Return a cell of a table as plain text, not as markup: names may contain brackets."""
    from rich.text import Text

    return Text(line(text))


def console(**options: Any) -> Console:
    """Return a rich console for tables and bars; pass their strings through `line` or `cell` first."""
    from rich.console import Console

    return Console(**options)
