"""How far a comparison is and how long it may take: a bar, or a line per look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._util.terminal import bar, cell, complain, line, style
from .design import Design, Trial
from .sentences import words_of
from .statistics import detectable
from .store import Comparison, missing

LINES = 20  # trials between two lines of progress


def time_of(current: Comparison, works: Sequence[tuple[Trial, int]], workers: int = 1) -> float:
    """Return the seconds that these trials take on this machine, by the time per pass of earlier ones."""
    design = current.design
    trials = [(design.trial(m, i), done.seconds) for (kind, m, i, _), done in current.done.items() if kind == "trial"]
    rate = sum(time for _, time in trials) / max(sum(_size(design, t) for t, _ in trials), 1e-9)
    return rate * sum(_size(design, t) for t, _ in works) / workers


def _size(design: Design, trial: Trial) -> float:
    """The passes of a trial over its rows."""
    return trial.epochs * design.passes(trial.method, trial.options)


class Shown:
    """A bar, or a line per look, about how far a comparison is and how long it may take."""

    def __init__(self, progress: bool | None, workers: int = 1):
        self._workers = workers
        self._style = style(progress)
        self._bar = bar() if self._style == "bars" else None
        self._task: Any = None
        self._looks, self._said = 0, ""

    def __enter__(self) -> Shown:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("comparing", total=None, now="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, current: Comparison, pilots: int) -> None:
        """Show a comparison after a trial; N_max follows from its first, the pilots."""
        if self._style == "nothing":
            return
        design, most = current.design, current.most
        done = sum(kind == "trial" for kind, *_ in current.done)
        if not most:
            now, total = "timing the first trials", pilots * len(design.methods)
        else:
            total = most * len(design.methods)
            open_ = [design.reference, *current.undecided] if current.undecided else []
            left = time_of(current, missing(current, open_, most), self._workers)
            now = f"{done} trials, at most {words_of(left)} left" if open_ else f"{done} trials, and fresh seeds"
        looked = len(current.history) > self._looks
        if self._bar is not None:
            if looked:  # stays above the bar
                self._bar.console.print(cell(_looked(current)))
            self._bar.update(self._task, completed=done, total=total, now=line(now))
        elif looked or (now != self._said and done % LINES == 0):
            complain(f"steppe compare: {_looked(current) if looked else now}")
        self._looks, self._said = len(current.history), now


def _looked(current: Comparison) -> str:
    """A look in words: the verdicts, and what the last look may show."""
    design, most, contrasts = current.design, current.most, current.contrasts
    text = f"after {max(c.difference.trials for c in contrasts.values())} trials of each: "
    text += ", ".join(f"{m} {c.verdict}" for m, c in contrasts.items())
    if c := next((c for c in contrasts.values() if c.verdict == "open"), None):
        shows = detectable(c.difference, most, design.alpha / max(len(design.families[0]) - 1, 1))
        text += f"; {most} would show {100 * shows:.1f} points"
    return text
