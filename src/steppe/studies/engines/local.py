"""Worker processes on this machine, and how they share its GPUs.

A killed worker costs its cell's work since the last checkpoint.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from ..._util.processes import Lost, Pool
from ...data.registry import keep_loaded
from ...training.stopping import StopRequest
from ..cell import Outcome, Task
from ..work import work
from .engine import Begun, RetryPolicy

# imported once by the fork server: the first step of any optimizer imports dynamo, which takes two seconds
PRELOADED = ["torch._dynamo", "steppe.training.entry", "steppe.measures.run", "steppe.nn.registry"]
# Cells at a time on one GPU with MPS: on an H200, 8 runs of ResNet-18 train 2.1 times as many images per second as one
# at width 16 and 1.3 times at width 64 (benchmarks/results/sharing_h200_2026-11-17.md).
PER_GPU = 8
GAIN = 1.8  # times as many, about, in projections: measured were 1.3 to 2.2
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

    @property
    def slowdown(self) -> float:
        return max(1.0, self.workers / self.gpus / GAIN) if self.gpus else 1.0

    def outcomes(
        self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun = lambda task: None
    ) -> Iterator[Outcome]:
        tries, waiting = RetryPolicy(self.retries), deque(tasks)
        count = min(self.workers, len(tasks))
        # alone on its GPU, a run is 11 % slower with MPS
        service: AbstractContextManager[dict[str, str]] = mps() if 0 < self.gpus < count else nullcontext({})
        with service as variables:
            gpus = [{"CUDA_VISIBLE_DEVICES": _visible(i % self.gpus)} if self.gpus else {} for i in range(count)]
            with Pool(_work, [{**variables, **gpu} for gpu in gpus], self.start, PRELOADED) as pool:
                for task, answer in pool.results(waiting, lambda: stop_request.why, begun):
                    outcome = Outcome.lost(task, str(answer)) if isinstance(answer, Lost) else answer
                    if (final := tries.settled(outcome)) is None:
                        waiting.append(task)
                    else:
                        yield final


def _work(task: Task) -> Outcome:
    """Compute a task in a worker, which keeps the data set for the next one."""
    keep_loaded()
    return work(task)


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
