"""Worker processes on this machine, with pebble, and how they share its GPUs.

A killed worker costs its cell's work since the last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.util import is_exiting
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from ..._util.environment import SAFE_PATH, environment
from ...data.registry import loaded_once
from ...training.stopping import StopRequest, end_with_parent
from ..cell import Outcome, Task
from ..work import work
from .engine import PAUSE, Begun, RetryPolicy

GRACE = 10.0  # seconds for a worker whose driver ended to write a checkpoint
PATIENCE = 120.0  # seconds for a worker to start its task
# imported once by the fork server: the first step of any optimizer imports dynamo, which takes two seconds
PRELOADED = ["torch._dynamo", "steppe.training.entry", "steppe.measures.run", "steppe.nn.registry"]
# Cells at a time on one GPU with MPS: on an H200, 8 runs of ResNet-18 train 2.1 times as many images per second as one
# at width 16 and 1.3 times at width 64 (benchmarks/results/sharing_h200_2026-11-17.md).
PER_GPU = 8
MEMORY = 8 << 30  # bytes of GPU memory per cell, at least: a ResNet-18 of width 64 takes about 1 GiB with its context
CONTROL = "nvidia-cuda-mps-control"  # comes with the driver
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SERVICE_PATIENCE = 30.0  # seconds for the service to start or to end
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
        tries, waiting = RetryPolicy(self.retries), deque(tasks)
        count = min(self.workers, len(tasks))
        # alone on its GPU, a run is 11 % slower with MPS
        service: AbstractContextManager[dict[str, str]] = mps() if 0 < self.gpus < count else nullcontext({})
        with environment(SAFE_PATH), service as variables:
            gpus = [{"CUDA_VISIBLE_DEVICES": _visible(i % self.gpus)} if self.gpus else {} for i in range(count)]
            workers = [_Worker(self.start, {**variables, **gpu}) for gpu in gpus]
            try:
                while not stop_request.why and (waiting or any(worker.task for worker in workers)):
                    for worker in workers:
                        if worker.task is None and waiting:
                            begun(waiting[0])
                            worker.take(waiting.popleft())
                    wait([worker.future for worker in workers if worker.future], PAUSE, FIRST_COMPLETED)
                    for worker in workers:
                        task, outcome = worker.task, worker.outcome()
                        if task is None or outcome is None:
                            continue
                        if (final := tries.settled(outcome)) is None:
                            waiting.append(task)
                        else:
                            yield final
            finally:
                for worker in workers:
                    worker.stop()
                for worker in workers:
                    worker.join()


class _Worker:
    """A pebble pool with one process, replaced whenever the process is lost.

    Killing a process of a larger pool at a bad moment can stop the whole pool (pebble 5.2).
    """

    def __init__(self, start: str, environment: dict[str, str]):
        self._start, self._environment = start, environment
        self.task: Task | None = None
        self.future: Future[Outcome] | None = None
        self._since = 0.0
        self._pool = self._new_pool()

    def _new_pool(self) -> Any:
        from pebble import ProcessPool

        context: Any = get_context(self._start)
        if self._start == "forkserver":
            context.set_forkserver_preload(PRELOADED)
        return ProcessPool(1, initializer=_begin, initargs=[self._environment], context=context)

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


def _begin(environment: dict[str, str]) -> None:
    """Initialise a worker."""
    end_with_parent(GRACE)  # nothing would store its outcome
    _exit_once()
    os.environ.update(environment)  # before torch is imported
    _LIFETIME.enter_context(loaded_once())


def _exit_once() -> None:
    """Let SIGTERM pass while the worker exits already.

    pebble closes a worker's pipe, at which it exits, and sends SIGTERM at once. That left semaphores, such as the one
    of inductor's progress bar, half removed, and multiprocessing warned of a leak.
    """
    end: Any = signal.getsignal(signal.SIGTERM)  # pebble's
    signal.signal(signal.SIGTERM, lambda number, frame: None if is_exiting() else end(number, frame))


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
    if not gpus or which(CONTROL) is None:
        return 1
    import torch

    memory = min(torch.cuda.get_device_properties(i).total_memory for i in range(gpus))
    return max(1, min(PER_GPU, memory // MEMORY, _cores() // gpus))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run the CUDA multi-process service (MPS): processes then use a GPU at the same time, not in turns.

    Yields the environment variables with which a process uses it: none if no service can be started, or if the
    environment names one already, which is left running.
    """
    if PIPES in os.environ or which(CONTROL) is None:
        yield {}
        return
    with TemporaryDirectory(prefix="steppe-mps-") as folder:
        variables = {PIPES: str(Path(folder, "pipes")), LOGS: str(Path(folder, "logs"))}
        for place in variables.values():
            Path(place).mkdir()
        if not _control(variables, "-d"):
            yield {}
            return
        try:
            yield variables
        finally:
            _control(variables, text="quit\n")


def _control(variables: dict[str, str], *arguments: str, text: str = "") -> bool:
    """Run the control program; return whether it succeeded."""
    # the service numbers GPUs among those that it sees, and processes name them as the environment does
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | variables
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": SERVICE_PATIENCE}
    try:
        done = subprocess.run([CONTROL, *arguments], input=text, text=True, env=environment, check=False, **options)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
