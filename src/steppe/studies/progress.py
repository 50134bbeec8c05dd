"""Progress of a running study: a bar with the cells that are done, failed and running, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .._util.terminal import bar, line, say, style

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

    shown = style(progress)
    if shown == "nothing":
        yield lambda name, state: None
    elif shown == "lines":

        def print_line(name: str, state: str) -> None:
            count(name, state)
            if state != "running":
                noun = "" if what == "cells" else f" {what}"
                say(f"{sum(counts.values())} of {total}{noun}: {line(name)} {state}", error=True)

        yield print_line
    else:
        with bar("now", "elapsed", "left", "remaining") as bars:
            task = bars.add_task(what, total=total - done, now=summary())

            def update(name: str, state: str) -> None:
                words = count(name, state)
                bars.update(task, completed=sum(counts.values()) - done, now=words)

            yield update
