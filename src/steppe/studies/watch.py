"""What a person sees of a study under way: one bar with the cells done, failed and running, and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .._util.terminal import console, line, say

Watch = Callable[[str, str], None]  # a cell's name and what became of it: running, done or failed


@contextmanager
def watching(total: int, done: int, progress: bool | None, what: str = "cells") -> Iterator[Watch]:
    """A bar on a terminal; where there is none a line a cell, if progress is True, and otherwise nothing."""
    counts = {"done": done, "failed": 0, "running": 0}
    running: set[str] = set()  # by name: a cell whose worker was lost begins again

    def count(name: str, state: str) -> None:
        if state == "running":
            running.add(name)
        else:
            running.discard(name)
            counts[state] += 1
        counts["running"] = len(running)

    shown = sys.stderr.isatty() if progress is None else progress
    if not shown:
        yield lambda name, state: None
    elif not sys.stderr.isatty():

        def tell(name: str, state: str) -> None:
            count(name, state)
            if state != "running":
                ended = counts["done"] + counts["failed"]
                of = "" if what == "cells" else f" {what}"
                say(f"{ended} of {total}{of}: {line(name)} {state}", error=True)

        yield tell
    else:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        now = TextColumn("{task.fields[now]}", markup=False)
        columns = (
            TextColumn(what),
            BarColumn(),
            now,
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console(stderr=True), transient=True) as bars:
            task = bars.add_task("", total=total - done, now=_told(counts, total))

            def bar(name: str, state: str) -> None:
                count(name, state)
                ended = counts["done"] - done + counts["failed"]
                bars.update(task, completed=ended, now=_told(counts, total))

            yield bar


def _told(counts: dict[str, int], total: int) -> str:
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['done']} of {total} done{failed}, {counts['running']} running"
