"""Worker processes on this machine, with pebble: a killed one costs its cell's work since the last checkpoint."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from filelock import FileLock, Timeout

from ...data.registry import loaded_once
from ...training.stopping import StopRequest, end_with_parent
from ..cell import Outcome, Task
from ..work import work
from .engine import PAUSE, Begun, Tries
from .mps import has_mps, mps

GRACE = 10.0  # seconds for a worker whose driver ended to write a checkpoint
PATIENCE = 120.0  # seconds for a worker to start its task
# imported once by the fork server: the first step of any optimizer imports dynamo, which takes two seconds
PRELOADED = [
    "torch._dynamo",
    "steppe.training.entry",
    "steppe.measures.run",
    "steppe.data.registry",
    "steppe.nn.registry",
]
# Cells at a time on one GPU with MPS: on an H200, 8 runs of ResNet-18 train 2.1 times as many images per second as one
# at width 16 and 1.3 times at width 64 (benchmarks/results/sharing_h200_2026-11-17.md).
PER_GPU = 8
MEMORY = 8 << 30  # bytes of GPU memory per cell, at least: a ResNet-18 of width 64 takes about 1 GiB with its context
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # without these files there is no CUDA; checking them needs no torch


@dataclass(frozen=True)
class Local:
    """Worker processes, each with one cell at a time.

    Parameters
    ----------
    workers : int
        Number of processes.
    retries : int
        Retries of a cell whose worker was lost.
    gpus : int
        GPUs that workers share; 0 for none. If there are more workers than GPUs, they share them by MPS, where the
        driver has it; otherwise they take turns.
    start : str
        Start method of `multiprocessing`.

    """

    workers: int
    retries: int = 2
    gpus: int = 0
    start: str = "spawn"

    @classmethod
    def of(cls, workers: int | None, per_gpu: int | None, retries: int, device: str | None) -> Local:
        """As many workers as there are cores or places on GPUs, unless `workers` is given."""
        gpus = _gpus() if device is None or device == "cuda" else 0
        return cls(workers or gpus * (per_gpu or _per_gpu(gpus)) or _cores(), retries, gpus)

    def outcomes(
        self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun = lambda task: None
    ) -> Iterator[Outcome]:
        tries, waiting = Tries(self.retries), deque(tasks)
        count = min(self.workers, len(tasks))
        # alone on its GPU, a run is 11 % slower with MPS
        service: AbstractContextManager[dict[str, str]] = mps() if 0 < self.gpus < count else nullcontext({})
        with TemporaryDirectory(prefix="steppe-") as slots, service as environment:
            workers = [_Worker(self.start, slots, self.gpus, environment) for _ in range(count)]
            try:
                while not stop_request.why and (waiting or any(worker.task for worker in workers)):
                    for worker in workers:
                        if worker.task is None and waiting:
                            begun(waiting[0])
                            worker.take(waiting.popleft())
                    wait([worker.future for worker in workers if worker.future], PAUSE, FIRST_COMPLETED)
                    for worker in workers:
                        task, outcome = worker.task, worker.outcome()
                        final = tries.settled(outcome) if outcome is not None else None
                        if final is not None:
                            yield final
                        elif outcome is not None and task is not None:
                            waiting.append(task)
            finally:
                for worker in workers:
                    worker.stop()
                for worker in workers:
                    worker.join()


class _Worker:
    """A pebble pool with one process, replaced whenever the process is lost.

    Killing a process of a larger pool at a bad moment can stop the whole pool (pebble 5.2).
    """

    def __init__(self, start: str, slots: str, gpus: int, environment: dict[str, str]):
        self._start, self._initargs = start, (slots, gpus, environment)
        self.task: Task | None = None
        self.future: Future[Outcome] | None = None
        self._since = 0.0
        self._pool = self._new_pool()

    def _new_pool(self) -> Any:
        from pebble import ProcessPool

        context: Any = get_context(self._start)
        if self._start == "forkserver":
            context.set_forkserver_preload(PRELOADED)
        return ProcessPool(1, initializer=_begin, initargs=self._initargs, context=context)

    def take(self, task: Task) -> None:
        """Start a task."""
        if not self._pool.active:
            self._replace()
        self.task, self._since = task, monotonic()
        self.future = self._pool.schedule(work, args=[task])

    def outcome(self) -> Outcome | None:
        """The outcome of the task; None while it is computed."""
        if self.task is None or self.future is None:
            return None
        if self.future.done():
            outcome, lost = _outcome(self.task, self.future)
        elif not self._pool.active or (not self.future.running() and monotonic() - self._since > PATIENCE):
            outcome, lost = Outcome.lost(self.task, "its worker was lost before it began"), True
        else:
            return None
        self.task = self.future = None
        if lost:
            self._replace()
        return outcome

    def _replace(self) -> None:
        self.stop()
        self.join()
        self._pool = self._new_pool()

    def stop(self) -> None:
        self._pool.stop()  # SIGTERM: a run writes a checkpoint

    def join(self) -> None:
        self._pool.join()


def _outcome(task: Task, future: Future[Outcome]) -> tuple[Outcome, bool]:
    """The outcome of a worker, and whether the worker was lost."""
    from pebble import ProcessExpired

    try:
        return future.result(), False
    except ProcessExpired as gone:
        return Outcome.lost(task, f"its worker ended with exit code {gone.exitcode}"), True
    except Exception as error:  # from the pipe to the worker: errors of the cell itself are outcomes
        return Outcome.lost(task, f"its result could not be read: {error!r}"), True


_LIFETIME = ExitStack()  # of a worker, which computes the cells of one study


def _begin(slots: str, gpus: int, environment: dict[str, str]) -> None:
    """Initialise a worker."""
    end_with_parent(GRACE)  # nothing would store its outcome
    os.environ.update(environment)
    _LIFETIME.enter_context(loaded_once())
    if gpus:  # before torch is imported
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(_slot(Path(slots)) % gpus)


_HELD: list[FileLock] = []  # the system releases them, however the worker ends


def _slot(folder: Path) -> int:
    """The lowest number that no other live worker has."""
    number = 0
    while True:
        lock = FileLock(folder / f"{number}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            number += 1
            continue
        _HELD.append(lock)
        return number


def _visible(gpu: int) -> str:
    """The name of a GPU among those in CUDA_VISIBLE_DEVICES."""
    named = [n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n]
    return named[gpu] if named else str(gpu)


def _gpus() -> int:
    if not any(Path(file).exists() for file in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count()


def _per_gpu(gpus: int) -> int:
    """The default number of cells at a time per GPU: several with MPS, as far as memory and cores allow."""
    if not gpus or not has_mps():
        return 1
    import torch

    memory = min(torch.cuda.get_device_properties(i).total_memory for i in range(gpus))
    return max(1, min(PER_GPU, memory // MEMORY, _cores() // gpus))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
