"""How far a comparison is and how long it may take: a bar, or a line per look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapreplace
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from .._util.terminal import bar, cell, complain, line, style
from .design import Design, Key, Trial
from .recommend import BEST, REPEATS
from .sentences import words_of
from .sequential import LOOKS
from .statistics import detectable
from .store import Comparison, missing

LINES = 20  # trials between two lines of progress
SPARE = 1.1  # times what earlier trials say


def pace(current: Comparison) -> Callable[[Trial], float]:
    """Return the seconds of a trial, by those that ran to their end: so many per run, and so many per pass."""
    design, trials = current.design, [(key, done) for key, done in current.done.items() if key[0] == "trial"]
    ran = [(key, done) for key, done in trials if not (done.failed or done.stopped)] or trials
    if not ran:
        return lambda trial: 0.0

    def size(trial: Trial) -> float:
        return trial.epochs * design.passes(trial.method, trial.options)

    sizes = [(1.0, size(design.trial(method, index))) for (_, method, index, _), _ in ran]
    (begin, rate), _ = nnls(np.array(sizes), np.array([done.seconds for _, done in ran]))
    return lambda trial: float(begin + rate * size(trial))


def wall(times: Iterable[float], workers: int) -> float:
    """Return when the last of these runs ends, if so many run at a time and each begins as another ends."""
    ends = [0.0] * workers
    for time in times:
        heapreplace(ends, ends[0] + time)
    return max(ends)


def needed(
    design: Design, most: int, seconds: Callable[[Trial], float], workers: int, done: Collection[Key] = ()
) -> float:
    """Return about how long a comparison of so many trials takes, look by look, and then the seeds of the best."""
    total, before = 0.0, 0
    for look in design.with_most(most).looks:
        keys = [("trial", m, i, 0) for i in range(before, look) for m in design.methods]
        total += wall((seconds(design.trial(m, i)) for _, m, i, _ in keys if ("trial", m, i, 0) not in done), workers)
        before = look
    usual = fmean(seconds(design.trial(m, i)) for m in design.methods for i in range(most))
    return total + sum(wall([usual] * n, workers) for n in ((BEST + 1) * REPEATS["again"], REPEATS["fresh"]))


def affordable(
    design: Design, left: float, seconds: Callable[[Trial], float], workers: int, done: Collection[Key] = ()
) -> int:
    """Return the most trials per method that this time allows, in steps of half a tuning; 0 if no look is in reach."""
    plans = range(design.first, LOOKS[-1] * design.tuning + 1, max(design.tuning // 2, 1))
    return max((n for n in plans if SPARE * needed(design, n, seconds, workers, done) <= left), default=0)


def time_left(current: Comparison, workers: int) -> float:
    """Return about how long the trials take that open contrasts need at most, or need to the first look."""
    seconds, methods = pace(current), [current.design.reference, *current.undecided] if current.undecided else []
    return wall(map(seconds, missing(current, methods, current.most or current.design.first)), workers)


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

    def update(self, current: Comparison) -> None:
        """Show a comparison after a trial."""
        if self._style == "nothing":
            return
        design, most = current.design, current.most
        done = sum(kind == "trial" for kind, *_ in current.done)
        total = (most or design.first) * len(design.methods)
        now = f"{done} trials, and fresh seeds"
        if current.undecided:
            left = words_of(time_left(current, self._workers))
            now = f"{done} trials, {'at most' if most else 'to the first look'} {left} left"
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
    text += ", ".join(f"{m}: {'not decided yet' if c.verdict == 'open' else c.verdict}" for m, c in contrasts.items())
    if c := next((c for c in contrasts.values() if c.verdict == "open"), None):
        shows = detectable(c.difference, most, design.alpha / max(len(design.families[0]) - 1, 1))
        text += f"; {most} trials could show {100 * shows:.1f} points"
    return text
