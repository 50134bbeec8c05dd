"""Training of an ensemble: all members train from one exchange of scores to the next, in sequence or in processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .._util.processes import end_with_parent
from ..training.config import Config
from ..training.entry import train
from ..training.evaluate import corrupted_test
from ..training.problem import data_of
from ..training.runs import RUN, folder_of, open_run
from ..training.schedule import Position
from ..training.stopping import Stopped, StopRequest, stop_signals
from .members import Trained, exchange, exchanges, folder, keep, members_of, open_ensemble, write_scores
from .strategies import Ensemble, How

Reach = Callable[[Sequence[Config], int | None], None]
"""Trains all members to the end of an epoch and has them write scores, or to the end of their runs."""
Way = Callable[[Ensemble, bool | None], AbstractContextManager[Reach]]


def train_ensemble(config: Config, ensemble: Ensemble | None = None, progress: bool | None = None) -> Trained:
    """Train all members, each in its own folder under the ensemble's.

    Call it again to resume: the result is bit-identical.

    Parameters
    ----------
    config
        The configuration from which those of the members are made.
    ensemble
        The settings of the ensemble.
    progress
        Whether to show progress; by default only on a terminal.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = steppe.training.Config(**small, out=folder)
    ...     trained = steppe.ensembles.train_ensemble(config, steppe.ensembles.Ensemble(2, strategy="deep"))
    ...     sorted(path.name for path in trained.path.iterdir() if path.is_dir())
    ['member-0', 'member-1']

    """
    ensemble = ensemble or Ensemble()
    configs = members_of(config, ensemble)
    splits = data_of(config)
    if not splits.train.classes:
        raise ValueError(f"{config.data} is a regression problem: ensembles are of classifiers")
    corrupted_test(config, splits.test)  # raises now, and not after training, if official files do not fit
    keep(config, ensemble)
    with WAYS[ensemble.how](ensemble, progress) as reach:
        for epoch in exchanges(configs[0]):
            reach(configs, epoch)
            exchange(configs, ensemble, epoch)
        reach(configs, None)
    return open_ensemble(folder(config, ensemble), config.model)


@contextmanager
def in_sequence(ensemble: Ensemble, progress: bool | None) -> Iterator[Reach]:
    """Yield a function that trains one member after the other."""

    def reach(configs: Sequence[Config], until: int | None) -> None:
        for config in configs:
            train(config, progress, until)
            if until is not None:
                write_scores(config, until)

    yield reach


TRIES = 3  # starts of a member whose process dies without progress
PAUSE = 0.2  # seconds between two checks for a signal to stop


@contextmanager
def in_processes(ensemble: Ensemble, progress: bool | None) -> Iterator[Callable[[Sequence[Config], int | None], None]]:
    """Yield a function that trains several members at once, in spawned processes that live until the block ends."""
    cores = os.cpu_count() or 1
    count = min(ensemble.processes or cores, ensemble.members)
    idle: list[Worker] = []
    with stop_signals() as stop_request:

        def reach(configs: Sequence[Config], until: int | None) -> None:
            _reach(deque(_Task(c, until) for c in configs), count, idle, max(1, cores // count), stop_request)

        try:
            yield reach
        finally:
            for worker in idle:
                worker.dismiss()


@dataclass
class _Task:
    config: Config
    until: int | None
    deaths: int = 0
    reached: Position | None = None  # how far the run was when its process last died


class Worker:
    """A process that trains one member at a time."""

    def __init__(self, threads: int):
        context = get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(target=_work, args=(child_pipe, threads), daemon=True)
        self.process.start()
        child_pipe.close()

    def result(self) -> dict[str, str] | None:
        """Return the result of its task; None if the process died."""
        try:
            result: dict[str, str] = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return None
        return result

    def dismiss(self) -> None:
        self.pipe.close()
        self.process.join()


def _reach(waiting: deque[_Task], count: int, idle: list[Worker], threads: int, stop_request: StopRequest) -> None:
    busy: dict[Connection, tuple[Worker, _Task]] = {}
    errors: list[str] = []
    paths = [folder_of(t.config) for t in waiting]
    terminated = False
    try:
        while waiting or busy:
            while waiting and len(busy) < count and not stop_request.why:
                worker, task = idle.pop() if idle else Worker(threads), waiting.popleft()
                worker.pipe.send((task.config, task.until))
                busy[worker.pipe] = worker, task
            if stop_request.why and not terminated:
                terminated = True
                waiting.clear()
                for worker, _ in busy.values():
                    worker.process.terminate()
            ready: Any = wait(list(busy), PAUSE)
            for pipe in ready:
                worker, task = busy.pop(pipe)
                result = worker.result()
                if result is not None:
                    idle.append(worker)
                    errors += [result["error"]] if result["error"] and not stop_request.why else []
                elif not stop_request.why:
                    errors += _again(task, worker, waiting)
    finally:
        for worker, _ in busy.values():
            worker.process.kill()
    if stop_request.why:
        raise Stopped(paths[0].parent, min(_place(p) for p in paths), stop_request.why)
    if errors:
        raise RuntimeError("; ".join(errors) + ". The progress of the other members is kept.")


def _place(path: Path) -> Position:
    """Return the position of a member's run, started or not."""
    return open_run(path).position if (path / RUN).exists() else Position()


def _again(task: _Task, worker: Worker, waiting: deque[_Task]) -> list[str]:
    """Give a task to another process, unless its process died several times at the same position."""
    path = folder_of(task.config)
    now = _place(path)
    task.deaths = 1 if now != task.reached else task.deaths + 1
    task.reached = now
    if task.deaths < TRIES:
        waiting.append(task)
        return []
    return [f"{path}: its process ended with exit code {worker.process.exitcode}, {TRIES} times at the same position"]


def _work(pipe: Connection, threads: int) -> None:
    """Train one member after the other in this process until the pipe closes."""
    import torch

    from ..training.entry import train

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the others
    end_with_parent()
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    while True:
        try:
            config, until = pipe.recv()
        except EOFError:
            return
        message = ""
        try:
            train(config, False, until)
            if until is not None:
                write_scores(config, until)
        except Exception as error:
            message = str(error) or type(error).__name__
        pipe.send({"error": message})


WAYS: Mapping[How, Way] = {"sequence": in_sequence, "processes": in_processes}
