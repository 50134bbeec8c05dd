"""Training of an ensemble: all members train from one exchange of scores to the next, in sequence or in processes."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .._util.environment import SAFE_PATH, environment
from ..training.config import Config
from ..training.entry import train
from ..training.evaluate import corrupted_test
from ..training.folder import RUN, folder_of, open_run
from ..training.problem import data_of
from ..training.schedule import Position
from ..training.stopping import Stopped, end_with_parent, stop_signals
from .members import Trained, exchange, exchanges, members_of, open_ensemble, save_settings, write_scores
from .strategies import Ensemble


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
    save_settings(config, ensemble)
    train_members = _in_processes if ensemble.how == "processes" else _in_sequence
    for epoch in exchanges(configs[0]):
        train_members(configs, epoch, ensemble, progress)
        exchange(configs, ensemble, epoch)
    train_members(configs, None, ensemble, progress)
    return open_ensemble(folder_of(config, ensemble.strategy), config.model)


def _in_sequence(configs: Sequence[Config], until: int | None, ensemble: Ensemble, progress: bool | None) -> None:
    for config in configs:
        _train_member(config, until, progress)


def _train_member(config: Config, until: int | None, progress: bool | None) -> None:
    """Train a member to the end of its run, or to the end of an epoch and write its scores."""
    train(config, progress, until)
    if until is not None:
        write_scores(config, until)


TRIES = 3  # starts of a member whose process dies without progress
PAUSE = 0.2  # seconds between two checks for a signal to stop


@dataclass
class _Task:
    config: Config
    deaths: int = 0
    reached: Position | None = None  # how far the run was when its process last died


def _in_processes(configs: Sequence[Config], until: int | None, ensemble: Ensemble, progress: bool | None) -> None:
    """Train several members at once, each in a spawned process, and restart those whose process dies."""
    cores = os.cpu_count() or 1
    count = min(ensemble.processes or cores, ensemble.members)
    waiting, busy = deque(map(_Task, configs)), dict[Connection, tuple[Any, _Task]]()
    errors: list[str] = []
    terminated = False
    with environment(SAFE_PATH), stop_signals() as stop_request:
        try:
            while busy or (waiting and not stop_request.why):
                while waiting and len(busy) < count and not stop_request.why:
                    task = waiting.popleft()
                    pipe, process = _start(task.config, until, max(1, cores // count))
                    busy[pipe] = process, task
                if stop_request.why and not terminated:
                    terminated = True
                    for process, _ in busy.values():
                        process.terminate()
                ready: Any = wait(list(busy), PAUSE)
                for pipe in ready:
                    process, task = busy.pop(pipe)
                    error = _received(pipe)
                    process.join()
                    if error is None and not stop_request.why:
                        error = _restart(task, process.exitcode, waiting)
                    errors += [error] if error else []
        finally:
            for process, _ in busy.values():
                process.kill()
    if stop_request.why:
        paths = [folder_of(config) for config in configs]
        raise Stopped(paths[0].parent, min(map(_position, paths)), stop_request.why)
    if errors:
        raise RuntimeError("; ".join(errors) + ". The progress of the other members is kept.")


def _start(config: Config, until: int | None, threads: int) -> tuple[Connection, Any]:
    """Start a process that trains a member; return it with the pipe for its result."""
    context = get_context("spawn")
    pipe, child_pipe = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(child_pipe, config, until, threads), daemon=True)
    process.start()
    child_pipe.close()
    return pipe, process


def _work(pipe: Connection, config: Config, until: int | None, threads: int) -> None:
    """Train a member in this process, and send its error, empty if there is none."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops the others
    end_with_parent()
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    try:
        _train_member(config, until, progress=False)
    except Exception as error:
        pipe.send(str(error) or type(error).__name__)
    else:
        pipe.send("")


def _received(pipe: Connection) -> str | None:
    """Return what a process sent; None if it died."""
    with pipe:
        try:
            return str(pipe.recv())
        except (EOFError, OSError):
            return None


def _position(path: Path) -> Position:
    """Return the position of a member's run, started or not."""
    return open_run(path).position if (path / RUN).exists() else Position()


def _restart(task: _Task, exit_code: int, waiting: deque[_Task]) -> str:
    """Let a task wait for another process; return an error if its process died several times at the same position."""
    path = folder_of(task.config)
    position = _position(path)
    task.deaths = 1 if position != task.reached else task.deaths + 1
    task.reached = position
    if task.deaths == TRIES:
        return f"{path}: its process ended with exit code {exit_code}, {TRIES} times at the same position"
    waiting.append(task)
    return ""
