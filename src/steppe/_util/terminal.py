"""Everything that is printed: names and keys come from files, and a terminal obeys some of their characters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def line(text: object) -> str:
    """A text on one line, with everything escaped that is not printed as itself: control codes, turned text, breaks."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said)


def say(text: object, *, error: bool = False, end: str = "\n") -> None:
    """Prints lines on stdout, or on stderr."""
    said = "\n".join(map(line, str(text).expandtabs().split("\n")))
    print(said, file=sys.stderr if error else sys.stdout, end=end, flush=error)


def complain(text: object) -> None:
    """Prints what is wrong on stderr; only its first line stands at the margin, whatever names in it say."""
    say(str(text).replace("\n", "\n  "), error=True)


def cell(text: object) -> Text:
    """A cell of a table, as text and not as markup: names may have brackets."""
    from rich.text import Text

    return Text(line(text))


def console(**options: Any) -> Console:
    """Where tables and bars are drawn; what goes into them passes `line` or `cell` first."""
    from rich.console import Console

    return Console(**options)
