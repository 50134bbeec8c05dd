"""A Ray cluster, or Ray on this machine. Runs lie on the nodes that trained them, unless the folder is shared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ...training.stopping import Wish
from ..cell import Outcome, Task
from ..work import work
from .engine import PAUSE, Begun, Tries


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster, a core or a part of a GPU each; Ray itself starts those anew whose node is lost."""

    address: str | None = None
    retries: int = 2
    limit: int | None = None
    per_gpu: int = 1

    @property
    def workers(self) -> int:
        ray = _ray()
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False, include_dashboard=False)
        have = ray.cluster_resources()
        return self.limit or int(have.get("GPU", 0)) * self.per_gpu or int(have.get("CPU", 1)) or 1

    def outcomes(self, tasks: Sequence[Task], wish: Wish, begun: Begun = lambda task: None) -> Iterator[Outcome]:
        ray, workers = _ray(), self.workers
        gpus = 1 / self.per_gpu if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=self.retries)(work)
        tries, waiting = Tries(self.retries), deque(tasks)
        running: dict[Any, Task] = {}
        try:
            while (waiting or running) and not wish.why:
                while waiting and len(running) < workers:
                    task = waiting.popleft()
                    begun(task)
                    running[remote.remote(task)] = task
                for ref in ray.wait(list(running), num_returns=1, timeout=PAUSE)[0]:
                    task = running.pop(ref)
                    outcome = tries.settled(_outcome(ray, ref, task))
                    if outcome is None:
                        waiting.append(task)
                    else:
                        yield outcome
        finally:
            for ref in running:
                ray.cancel(ref)


def _outcome(ray: Any, ref: Any, task: Task) -> Outcome:
    try:
        found: Outcome = ray.get(ref)
    except ray.exceptions.RayError as error:
        return Outcome.lost(task, f"its worker was lost: {error}")
    return found


def _ray() -> Any:
    try:
        ray: Any = import_module("ray")
    except ImportError as missing:
        raise ImportError(
            "the engine ray needs Ray, which is not installed: pip install ray. Without --engine ray, cells are "
            "computed in processes of this machine"
        ) from missing
    return ray
