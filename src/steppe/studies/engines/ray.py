"""A Ray cluster, or Ray on this machine. Run folders stay on the nodes that trained them, unless they are shared."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from ..._util.environment import SAFE_PATH, environment
from ..._util.extras import explained
from ...training.stopping import StopRequest
from ..cell import Outcome, Task
from ..work import work
from .engine import PAUSE, Begun, RetryPolicy

GRACE = 10.0  # seconds for cancelled tasks to write a checkpoint
# Ray reads these when it is imported: the first hides workers' messages (a lost worker is an outcome), the second binds
# it to 127.0.0.1, as on systems where it supports no clusters
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": "."}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster; a task whose worker or node is lost is retried.

    Parameters
    ----------
    address : str, optional
        The cluster; defaults to RAY_ADDRESS, or to a Ray on this machine.
    retries : int
        Retries of a cell whose worker was lost.
    limit : int, optional
        Cells at a time; defaults to the cluster's GPUs or cores.
    per_gpu : int
        Cells at a time per GPU.
    device : str, optional
        The device of the runs.

    """

    address: str | None = None
    retries: int = 2
    limit: int | None = None
    per_gpu: int = 1
    device: str | None = None
    slowdown = 1.0
    remote = True  # nodes read the data, so the driver needs no torch

    @property
    def workers(self) -> int:
        with joined(self.address, self.limit) as ray:
            return self._places(ray)[0]

    def outcomes(
        self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun = lambda task: None
    ) -> Iterator[Outcome]:
        tries, waiting = RetryPolicy(self.retries), deque(tasks)
        running: dict[Any, Task] = {}
        here = os.getcwd(), list(sys.path)
        with joined(self.address, self.limit) as ray:
            places, share = self._places(ray)
            # Ray's own retries would multiply with ours
            remote = ray.remote(num_cpus=1, num_gpus=share, max_retries=0)(_work_from)
            try:
                while (waiting or running) and not stop_request.why:
                    while waiting and len(running) < places:
                        task = waiting.popleft()
                        begun(task)
                        running[remote.remote(*here, task)] = task
                    for ref in ray.wait(list(running), num_returns=1, timeout=PAUSE)[0]:
                        task = running.pop(ref)
                        outcome = tries.settled(_outcome(ray, ref, task))
                        if outcome is None:
                            waiting.append(task)
                        else:
                            yield outcome
            finally:
                for ref in running:
                    ray.cancel(ref)  # as an interrupt: a run writes a checkpoint
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=GRACE)

    def _places(self, ray: Any) -> tuple[int, float]:
        """The number of tasks at a time, and the share of a GPU per task."""
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if self.device is None or self.device.startswith("cuda") else 0
        return self.limit or gpus * self.per_gpu or int(resources.get("CPU", 1)) or 1, 1 / self.per_gpu if gpus else 0


@contextmanager
def joined(address: str | None = None, cores: int | None = None) -> Iterator[Any]:
    """Ray as this process has initialised it; otherwise connect to a cluster, or start a Ray here until the block ends.

    Without an address, RAY_ADDRESS names the cluster. A Ray that is started here listens on loopback only.
    """
    cluster = address or os.environ.get("RAY_ADDRESS") or "local"
    ours: dict[str, Any] = {"include_dashboard": False, "num_cpus": cores} if cluster == "local" else {}
    with environment({**SAFE_PATH, **QUIET, **(LOOPBACK if ours else {})}):
        with explained():
            ray: Any = import_module("ray")
        if ray.is_initialized():
            yield ray
            return
        try:
            with _signals_kept():
                # workers of jobs that are not a client's put the driver's working folder first on their import paths
                job = {} if cluster.startswith("ray://") else {"job_config": ray.job_config.JobConfig(_client_job=True)}
                ray.init(address=cluster, log_to_driver=False, logging_level="ERROR", **ours, **job)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"no Ray cluster was found at {cluster}: {_first_sentence(error)}. `ray start --head` starts one and "
                "prints its address; without an address, a Ray on this machine computes the cells"
            ) from error
        try:
            if ours:
                _check_loopback(ray.get_runtime_context().gcs_address)
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the study's SIGTERM handler, which writes checkpoints; Ray's own exits at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if current_thread() is main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def _check_loopback(address: str) -> None:
    """Raise if other machines can reach this Ray: it runs whatever they send."""
    if not address.startswith(("127.", "localhost:", "[::1]:")):
        raise RuntimeError(
            f"Ray would listen on {address}, open to other machines, because it was imported before the study ran: "
            "import it later, set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, or pass the address of your own Ray"
        )


def _work_from(folder: str, path: Sequence[str], task: Task) -> Outcome:
    """Compute a task in the driver's folder and with its module path, as far as this machine has them."""
    if Path(folder).is_dir():  # paths in a study may be relative
        os.chdir(folder)
    sys.path += [place for place in path if place not in sys.path]
    return work(task)


def _outcome(ray: Any, ref: Any, task: Task) -> Outcome:
    """The outcome of a task, of a lost worker, or of one that could not start."""
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.RayTaskError as error:  # such as a node without steppe: a retry does not help
        cause = getattr(error, "cause", None) or error
        return Outcome(task.cell.key, "failed", error=f"{type(cause).__name__}: {cause}")
    except ray.exceptions.RayError as error:
        return Outcome.lost(task, f"its worker was lost: {_first_sentence(error)}")
    return outcome


def _first_sentence(error: BaseException) -> str:
    """The first sentence of Ray's message; pages of advice follow."""
    return str(error).strip().splitlines()[0].partition(". ")[0].rstrip(".") if str(error).strip() else repr(error)
