"""Processes on this machine, by pebble: one that is killed costs its cell's part since the last checkpoint, no more."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from filelock import FileLock, Timeout

from ..._util.processes import end_with_parent
from ...training.stopping import Wish
from ..cell import Outcome, Task
from ..work import work
from .engine import PAUSE, Begun, Tries

GRACE = 10.0  # seconds for a process whose driver is gone to write a checkpoint
PATIENCE = 120.0  # seconds for a process to start and take its task
# for processes that are forked from one that has it all: the first step of any optimizer imports dynamo, in two seconds
PRELOADED = ["torch._dynamo", "steppe.training.entry", "steppe.measures.run", "steppe.data.named", "steppe.nn.registry"]
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # files without which there is no CUDA; a look at them takes no torch


@dataclass(frozen=True)
class Local:
    """Workers in processes of their own, as many as there are cores or places on GPUs, each with one cell at a time."""

    workers: int
    retries: int = 2
    gpus: int = 0
    start: str = "spawn"  # how processes begin, as multiprocessing calls it

    @classmethod
    def of(cls, workers: int | None, per_gpu: int, retries: int, device: str | None) -> Local:
        """As many workers as the machine has room for, unless told."""
        gpus = _gpus() if device is None or device == "cuda" else 0
        return cls(workers or gpus * per_gpu or _cores(), retries, gpus)

    def outcomes(self, tasks: Sequence[Task], wish: Wish, begun: Begun = lambda task: None) -> Iterator[Outcome]:
        tries, waiting = Tries(self.retries), deque(tasks)
        with TemporaryDirectory(prefix="steppe-") as slots:
            seats = [_Seat(self.start, slots, self.gpus) for _ in range(min(self.workers, len(tasks)))]
            try:
                while not wish.why and (waiting or any(seat.task for seat in seats)):
                    for seat in seats:
                        if seat.task is None and waiting:
                            begun(waiting[0])
                            seat.take(waiting.popleft())
                    wait([seat.future for seat in seats if seat.future], PAUSE, FIRST_COMPLETED)
                    for seat in seats:
                        task, found = seat.task, seat.outcome()
                        outcome = tries.settled(found) if found is not None else None
                        if outcome is not None:
                            yield outcome
                        elif found is not None and task is not None:
                            waiting.append(task)
            finally:
                for seat in seats:
                    seat.stop()
                for seat in seats:
                    seat.join()


class _Seat:
    """One worker's place: a pool of pebble's with one process, replaced whenever a worker is lost.

    A worker of a larger pool that is killed at a bad moment was seen to stop the whole pool (pebble 5.2).
    """

    def __init__(self, start: str, slots: str, gpus: int):
        self._start, self._initargs = start, (slots, gpus)
        self.task: Task | None = None
        self.future: Future[Outcome] | None = None
        self._since = 0.0
        self._pool = self._made()

    def _made(self) -> Any:
        from pebble import ProcessPool

        context: Any = get_context(self._start)
        if self._start == "forkserver":
            context.set_forkserver_preload(PRELOADED)
        return ProcessPool(1, initializer=_begin, initargs=self._initargs, context=context)

    def take(self, task: Task) -> None:
        """Gives a task to the worker."""
        if not self._pool.active:
            self._replace()
        self.task, self._since = task, monotonic()
        self.future = self._pool.schedule(work, args=[task])

    def outcome(self) -> Outcome | None:
        """What became of the task; None while it is computed."""
        if self.task is None or self.future is None:
            return None
        if self.future.done():
            found, lost = _outcome(self.task, self.future)
        elif not self._pool.active or (not self.future.running() and monotonic() - self._since > PATIENCE):
            found, lost = Outcome.lost(self.task, "its worker was lost before it began"), True
        else:
            return None
        self.task = self.future = None
        if lost:
            self._replace()
        return found

    def _replace(self) -> None:
        self.stop()
        self.join()
        self._pool = self._made()

    def stop(self) -> None:
        self._pool.stop()  # SIGTERM: a run writes a checkpoint

    def join(self) -> None:
        self._pool.join()


def _outcome(task: Task, future: Future[Outcome]) -> tuple[Outcome, bool]:
    """What a worker said, or that it was lost."""
    from pebble import ProcessExpired

    try:
        return future.result(), False
    except ProcessExpired as gone:
        return Outcome.lost(task, f"its worker ended with exit code {gone.exitcode}"), True
    except Exception as error:  # of the pipe to the worker: what the cell itself raises is an outcome
        return Outcome.lost(task, f"its worker could not be heard: {error!r}"), True


def _begin(slots: str, gpus: int) -> None:
    """The first thing that a worker does."""
    end_with_parent(GRACE)  # nobody would hear of its cell
    if gpus:  # before torch is imported
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(_slot(Path(slots)) % gpus)


_HELD: list[FileLock] = []  # the system lets go of it, however the worker ends


def _slot(folder: Path) -> int:
    """The lowest number that no other living worker has."""
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
    """The name of a GPU, among those that this machine's owner lets us see."""
    named = [n for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n]
    return named[gpu] if named else str(gpu)


def _gpus() -> int:
    if not any(Path(file).exists() for file in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
