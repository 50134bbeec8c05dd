"""Progress bars: the one place that draws them, and where they are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from .terminal import console, line

if TYPE_CHECKING:
    from rich.progress import Progress

Tick = Callable[[int, int], object]  # (points or bytes done, in total)
Column = Literal["now", "elapsed", "left", "remaining", "bytes", "speed"]


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
