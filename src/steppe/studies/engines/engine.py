"""The protocol of engines, engines by name, retries, and the engine that runs in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...data.registry import loaded_once
from ...training.stopping import StopRequest
from ..cell import Outcome, Task
from ..work import work
from .settings import EngineSettings

Begun = Callable[[Task], Any]  # is called with each task that starts
PAUSE = 0.2  # seconds between two checks for a request to stop


class Engine(Protocol):
    """A place where cells are computed."""

    @property
    def workers(self) -> int:
        """The number of cells that it computes at a time."""
        ...

    def outcomes(
        self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun = lambda task: None
    ) -> Iterator[Outcome]:
        """Yield the outcome of each task, in any order, until all are computed or a stop is requested.

        Parameters
        ----------
        tasks : sequence of Task
            What to compute.
        stop_request : StopRequest
            `stop_request.why` is set when a stop is requested.
        begun : callable
            Called with each task when it starts.

        """
        ...


class Tries:
    """Counts the tries of each task, and decides when to give up."""

    def __init__(self, retries: int):
        self._retries, self._tried = retries, Counter[str]()

    def settled(self, outcome: Outcome) -> Outcome | None:
        """The final outcome, or None if the task is to be retried."""
        if not outcome.transient:
            return outcome
        self._tried[outcome.key] += 1
        tried = self._tried[outcome.key]
        if tried <= self._retries:
            return None
        times = "once" if tried == 1 else f"{tried} times"
        return replace(outcome, error=f"{outcome.error} (tried {times})")


@dataclass(frozen=True)
class Serial:
    """One cell after the other in this process, for debuggers and where processes cannot be started."""

    retries: int = 2
    workers: int = 1

    def outcomes(
        self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun = lambda task: None
    ) -> Iterator[Outcome]:
        tries = Tries(self.retries)
        with loaded_once():
            for task in tasks:
                begun(task)
                outcome = None
                while outcome is None:
                    if stop_request.why:
                        return
                    outcome = tries.settled(work(task))
                yield outcome


def engine_of(settings: EngineSettings, device: str | None = None) -> Engine:
    """Make the engine of these settings; `device` is the device of the runs."""
    match settings.name:
        case "local":
            from .local import Local

            return Local.of(settings.workers, settings.per_gpu, settings.retries, device)
        case "serial":
            return Serial(settings.retries)
        case "ray":
            from .ray import Ray

            return Ray(settings.address, settings.retries, settings.workers, settings.per_gpu or 1, device)
        case removed:
            raise ValueError(
                f"the engine {removed!r} was removed: use 'local' or 'serial' (`engine:` in the file, or --engine). "
                "They train every run by itself, which gives the same numbers up to rounding"
            )
