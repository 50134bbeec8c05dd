"""Progress bars on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .terminal import console, line

if TYPE_CHECKING:
    from rich.progress import Progress

Tick = Callable[[int, int], object]  # (points done, points in total)


@contextmanager
def ticking(what: str, tick: Tick | None, progress: bool | None = None) -> Iterator[Tick]:
    """Yield the caller's progress callback; without one, a callback that draws a bar on the terminal."""
    if tick is not None or not is_shown(progress):
        yield tick or (lambda done, total: None)
        return
    with bar() as shown:
        task = shown.add_task(line(what), total=None, now="")
        yield lambda done, total: shown.update(task, completed=done, total=total, now=f"{done} of {total}")


def is_shown(progress: bool | None) -> bool:
    """Whether to show progress: None shows it if standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def bar() -> Progress:
    """A rich progress bar with a description, the field `now` and the elapsed time; it disappears at the end."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    name, now = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[now]}"))
    return Progress(name, BarColumn(), now, TimeElapsedColumn(), console=console(stderr=True), transient=True)
