"""What an engine is, and when a task is tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ...training.stopping import Wish
from ..cell import Outcome, Task

Begun = Callable[[Task], Any]  # hears that a task was given to a worker
PAUSE = 0.2  # seconds between two looks at whether somebody wishes to stop


class Engine(Protocol):
    """A place where cells are computed."""

    @property
    def workers(self) -> int:
        """How many cells it works on at a time."""
        ...

    def outcomes(self, tasks: Sequence[Task], wish: Wish, begun: Begun = lambda task: None) -> Iterator[Outcome]:
        """How each task ended, in any order, until all have or somebody wishes to stop."""
        ...


class Tries:
    """Counts how often each task was tried, and says when to give up."""

    def __init__(self, retries: int):
        self._retries, self._tried = retries, Counter[str]()

    def settled(self, outcome: Outcome) -> Outcome | None:
        """The outcome that counts, or None if the task is to be tried again."""
        if not outcome.transient:
            return outcome
        self._tried[outcome.key] += 1
        tried = self._tried[outcome.key]
        if tried <= self._retries:
            return None
        times = "once" if tried == 1 else f"{tried} times"
        return replace(outcome, error=f"{outcome.error} (tried {times})")
