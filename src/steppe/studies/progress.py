"""Progress of a running study: a bar with the cells that are done, failed and running, and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .._util.terminal import console, line, say

Update = Callable[[str, str], None]  # called with a cell's name and its state: running, done or failed


@contextmanager
def show_progress(total: int, done: int, progress: bool | None, what: str = "cells") -> Iterator[Update]:
    """Show a bar on a terminal; elsewhere one line per cell if `progress` is True, and otherwise nothing."""
    counts = {"done": done, "failed": 0}
    running: set[str] = set()  # by name: a cell whose worker was lost starts again

    def count(name: str, state: str) -> str:
        if state == "running":
            running.add(name)
        else:
            running.discard(name)
            counts[state] += 1
        return summary()

    def summary() -> str:
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        return f"{counts['done']} of {total} done{failed}, {len(running)} running"

    shown = sys.stderr.isatty() if progress is None else progress
    if not shown:
        yield lambda name, state: None
    elif not sys.stderr.isatty():

        def print_line(name: str, state: str) -> None:
            count(name, state)
            if state != "running":
                noun = "" if what == "cells" else f" {what}"
                say(f"{sum(counts.values())} of {total}{noun}: {line(name)} {state}", error=True)

        yield print_line
    else:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        now = TextColumn("{task.fields[now]}", markup=False)
        columns = (TextColumn(what), BarColumn(), now, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as bars:
            task = bars.add_task("", total=total - done, now=summary())

            def update(name: str, state: str) -> None:
                words = count(name, state)
                bars.update(task, completed=sum(counts.values()) - done, now=words)

            yield update
