"""Progress bars on a terminal, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .terminal import console, line

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Tick = Callable[[int, int], object]  # points done, points in all


def shows_progress(progress: bool | None) -> bool:
    """Whether to show progress: as asked for, by default only on a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def bars(*columns: ProgressColumn) -> Progress:
    """Bars that disappear at the end: the description of a task, its bar, its text `now`, and more columns."""
    from rich.progress import BarColumn, Progress, TextColumn

    name, now = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[now]}"))
    return Progress(name, BarColumn(), now, *columns, console=console(stderr=True), transient=True)


@contextmanager
def ticking(what: str, tick: Tick | None, progress: bool | None = None) -> Iterator[Tick]:
    """The caller's own `tick`, or one that moves a bar on the terminal, or one that does nothing."""
    if tick is not None or not shows_progress(progress):
        yield tick or (lambda done, total: None)
        return
    from rich.progress import TimeElapsedColumn

    with bars(TimeElapsedColumn()) as bar:
        task = bar.add_task(line(what), total=None, now="")
        yield lambda done, total: bar.update(task, completed=done, total=total, now=f"{done} of {total}")
