"""Bars on the terminal for measurements that take a while, and nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._util.terminal import console, line, say
from .estimate import Estimate

if TYPE_CHECKING:
    from rich.progress import Progress

Watch = Callable[[str, Estimate | None], None]  # the name of a measure, and its estimate so far
Tick = Callable[[int, int], object]  # points done, points in all


@contextmanager
def watching(measures: int, progress: bool | None) -> Iterator[Watch]:
    """A bar on the terminal with the running estimate and its error, or nothing where nobody looks."""
    if not _shown(progress):
        yield lambda name, estimate: None
        return
    if not sys.stderr.isatty():  # a log, where a line a measure is enough
        yield lambda name, estimate: say(f"{name} ...", error=True) if estimate is None else None
        return
    with _bar() as bar:
        task = bar.add_task("", total=measures, now="")
        seen: list[str] = []

        def watch(name: str, estimate: Estimate | None) -> None:
            if name not in seen:
                seen.append(name)
            now = f"{estimate}, {estimate.cost}" if estimate is not None else ""
            bar.update(task, description=line(name), completed=len(seen) - 1, now=now)

        yield watch


@contextmanager
def ticking(what: str, tick: Tick | None, progress: bool | None = None) -> Iterator[Tick]:
    """The caller's own way to hear of progress, or else a bar on the terminal."""
    if tick is not None or not _shown(progress):
        yield tick or (lambda done, total: None)
        return
    with _bar() as bar:
        task = bar.add_task(line(what), total=None, now="")
        yield lambda done, total: bar.update(task, completed=done, total=total, now=f"{done} of {total}")


def _shown(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    name, now = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[now]}"))
    return Progress(name, BarColumn(), now, TimeElapsedColumn(), console=console(stderr=True), transient=True)
