"""What a command answers with: data for machines, tables and sentences for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._util.json import json_safe
from .._util.terminal import cell, complain, console, say

PIPE_WIDTH = 160  # columns where no terminal says how many there are: enough that tables keep one line a row


@dataclass(frozen=True)
class Answer:
    """The same twice, as values of JSON and as texts and tables, with what went wrong and the exit code."""

    data: Any
    shown: Sequence[Any] = ()
    trouble: Sequence[str] = ()
    code: int = 0


def tell(answer: Answer, as_json: bool) -> None:
    """Prints an answer: on stdout what was asked for, on stderr what went wrong."""
    if as_json:
        say(json.dumps(plain(answer.data), indent=2, allow_nan=False))
    elif answer.shown:
        # a console that does not break lines for a terminal that is not there
        screen = console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
        for thing in answer.shown:
            if hasattr(thing, "__rich_console__"):
                screen.print(thing)
            else:
                say(thing)
    sys.stdout.flush()
    for line in answer.trouble:
        complain(line)


def table(*heads: str, right: Sequence[str] = (), fold: Sequence[str] = ()) -> Any:
    """An empty table: columns named in `right` are numbers, those in `fold` may take several lines."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in heads:
        made.add_column(
            cell(head), justify="right" if head in right else "left", no_wrap=head not in fold, overflow="fold"
        )
    return made


def add(to: Any, *cells: object) -> None:
    """Adds a row to a table."""
    to.add_row(*map(cell, cells))


def plain(x: Any) -> Any:
    """A value in types that JSON has: paths and others as texts, numbers that are not finite as null."""
    return json_safe(x, str)
