"""The terminal: text with control characters escaped, as a terminal would act on those in names, and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

Tick = Callable[[int, int], object]  # (points or bytes done, in total)
Column = Literal["now", "elapsed", "left", "remaining", "bytes", "speed"]


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


def is_shown(progress: bool | None) -> bool:
    """Return whether to show progress: None shows it if standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def style(progress: bool | None) -> Literal["bars", "lines", "nothing"]:
    """Return how to show progress: bars on a terminal unless it is False; elsewhere lines, if it is True."""
    if not is_shown(progress):
        return "nothing"
    return "bars" if sys.stderr.isatty() else "lines"


def bar(*columns: Column) -> Progress:
    """Return a progress display on standard error, which disappears at the end.

    Parameters
    ----------
    columns
        What follows the description and the bar: the task's field `now`, the elapsed or the remaining time, the word
        "left", bytes, or bytes per second. Defaults to `now` and the elapsed time.

    """
    from rich import progress as rich

    every = {
        "now": rich.TextColumn("{task.fields[now]}", markup=False),
        "elapsed": rich.TimeElapsedColumn(),
        "left": rich.TextColumn("left"),
        "remaining": rich.TimeRemainingColumn(),
        "bytes": rich.DownloadColumn(),
        "speed": rich.TransferSpeedColumn(),
    }
    description = rich.TextColumn("{task.description}", markup=False)
    chosen = [every[name] for name in columns or ("now", "elapsed")]
    return rich.Progress(description, rich.BarColumn(), *chosen, console=console(stderr=True), transient=True)


@contextmanager
def ticking(what: str, tick: Tick | None, progress: bool | None = None) -> Iterator[Tick]:
    """Yield the caller's progress callback; without one, a callback that draws a bar on the terminal."""
    if tick is not None or not is_shown(progress):
        yield tick or (lambda done, total: None)
        return
    with bar() as shown:
        task = shown.add_task(line(what), total=None, now="")
        yield lambda done, total: shown.update(task, completed=done, total=total, now=f"{done} of {total}")
