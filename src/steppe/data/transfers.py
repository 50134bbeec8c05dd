"""A bar on the terminal for files that are on their way, and nothing where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .._util.terminal import console, say


@contextmanager
def transfer(what: str, progress: bool | None = None) -> Iterator[Callable[[int, int], object]]:
    """Something to tell bytes so far and bytes in all: shown on a terminal unless `progress` is False."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():  # a log, where a line a file is enough
        say(f"{what} ...", error=True)
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
