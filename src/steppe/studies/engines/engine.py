"""Where the cells of a study are computed: settings in its file, the protocol of engines, retries, and one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_args

from ..._util.names import unknown
from ...core.fields import Count, Ge, check_fields
from ...data.registry import loaded_once
from ..grid import mapping

if TYPE_CHECKING:
    from ...training.stopping import StopRequest
    from ..cell import Outcome, Task

EngineName = Literal["local", "serial", "ray"]
PAUSE = 0.2  # seconds between two checks for a request to stop

Begun = Callable[["Task"], Any]  # is called with each task that starts


@dataclass(frozen=True)
class EngineSettings:
    """Where and how cells are computed. Nothing here changes a number.

    Parameters
    ----------
    name : {"local", "serial", "ray"}
        Local processes, one process for debugging, or a Ray cluster.
    workers : int, optional
        Cells at a time; defaults to the number of cores, or of GPUs.
    per_gpu : int, optional
        Cells at a time per GPU. Defaults to 1, and with the engine local to at most 8 where the driver has the CUDA
        multi-process service, as GPU memory and cores allow.
    retries : int
        Retries of a cell whose worker was lost, before it is recorded as failed.
    address : str, optional
        Address of a Ray cluster; by default Ray starts one on this machine.

    """

    name: EngineName = "local"
    workers: Count | None = None
    per_gpu: Count | None = None
    retries: Annotated[int, Ge(0)] = 2
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(EngineName):
            raise ValueError(unknown("engine", str(self.name), get_args(EngineName)))
        check_fields(self, "an engine")

    @classmethod
    def of(cls, value: Any) -> EngineSettings:
        """Parse a name, or `{name: local, workers: 4}`."""
        values = {"name": value} if isinstance(value, str) else value
        names = [f.name for f in fields(cls)]
        return cls(**mapping(values, "engine", "a name or a mapping, as in {name: local, workers: 4}", names))


class Engine(Protocol):
    """A place where cells are computed."""

    @property
    def workers(self) -> int:
        """The number of cells that it computes at a time."""
        ...

    @property
    def slowdown(self) -> float:
        """About how many times as long a cell takes beside the others as alone."""
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


class RetryPolicy:
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
        return replace(outcome, error=f"{outcome.error} (tried {'once' if tried == 1 else f'{tried} times'})")


@dataclass(frozen=True)
class Serial:
    """One cell after the other in this process, for debuggers and where processes cannot be started."""

    retries: int = 2
    workers: int = 1
    slowdown = 1.0

    def outcomes(
        self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun = lambda task: None
    ) -> Iterator[Outcome]:
        from ..work import work

        tries = RetryPolicy(self.retries)
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
