"""Output of a command: JSON for programs, tables and sentences on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._util.formats import json_safe
from .._util.terminal import cell, complain, console, say

PIPE_WIDTH = 160  # columns without a terminal: enough for one line per row of a table


@dataclass(frozen=True)
class Output:
    """Result of a command.

    Parameters
    ----------
    data
        The result as JSON values, for --json.
    shown
        The result as strings and tables.
    errors
        Lines for stderr.
    code
        The exit code.

    """

    data: Any
    shown: Sequence[Any] = ()
    errors: Sequence[str] = ()
    code: int = 0


def print_output(output: Output, as_json: bool) -> None:
    """Print the result on stdout and the errors on stderr."""
    if as_json:
        say(to_json(output.data))
    elif output.shown:
        screen = console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
        for item in output.shown:
            if hasattr(item, "__rich_console__"):
                screen.print(item)
            else:
                say(item)
    sys.stdout.flush()
    for line in output.errors:
        complain(line)


def table(*heads: str, right: Sequence[str] = (), fold: Sequence[str] = ()) -> Any:
    """Return an empty table; columns in `right` are aligned right, columns in `fold` wrap their cells."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in heads:
        made.add_column(
            cell(head), justify="right" if head in right else "left", no_wrap=head not in fold, overflow="fold"
        )
    return made


def add_row(to: Any, *cells: object) -> None:
    """Add a row to a table."""
    to.add_row(*map(cell, cells))


def to_json(data: Any) -> str:
    """Return values as JSON text: paths and other types as strings, numbers that are not finite as null."""
    return json.dumps(json_safe(data, str), indent=2, allow_nan=False)
