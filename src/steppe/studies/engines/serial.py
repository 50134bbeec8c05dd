"""One cell after the other in this process: for debuggers, and where processes cannot be started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...training.stopping import Wish
from ..cell import Outcome, Task
from ..work import work
from .engine import Begun, Tries


@dataclass(frozen=True)
class Serial:
    """In the process that asks."""

    retries: int = 2
    workers: int = 1

    def outcomes(self, tasks: Sequence[Task], wish: Wish, begun: Begun = lambda task: None) -> Iterator[Outcome]:
        tries = Tries(self.retries)
        for task in tasks:
            begun(task)
            outcome = None
            while outcome is None:
                if wish.why:
                    return
                outcome = tries.settled(work(task))
            yield outcome
