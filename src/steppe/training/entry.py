"""The way into training: a configuration in, a run out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from ..measures.elsewhere import random_numbers_kept
from ..measures.workers import Workers
from .checkpoint import Committed, committed
from .config import Config
from .distributed import device_of, joined, together
from .folder import LOCK, about, claimed, config_in, is_empty, plain, refuse_changes
from .known import refuse_unknown
from .loggers import Logger, logger
from .loop import Asking, Training, follow
from .problem import data_of, task_of
from .progress import watching
from .runs import Run, open_run
from .start import folder_of, prepare
from .stopping import Wish, listening
from .threads import threads


def train(config: Config, progress: bool | None = None, until: int | None = None) -> Run:
    """Trains a run to its end, from its folder's last checkpoint if there is one, and returns it.

    A run that is finished is returned as it is. `progress`: True also where there is no terminal, False nowhere.
    `until`: only to the end of that epoch; the run goes on from there. Raises `Stopped` when a signal ends it early.
    """
    with ExitStack() as stack:
        wish = stack.enter_context(listening())
        begun = begin(stack, config, wish, progress, until)
        if begun is not None:
            training, asking = begun
            training.capture()
            follow(asking, training.seen)
        return open_run(folder_of(config))


def begin(
    stack: ExitStack, config: Config, wish: Wish, progress: bool | None = None, until: int | None = None
) -> tuple[Training, Asking] | None:
    """A run where its folder says that it is, with the folder claimed; None if it is as far as that already."""
    plain(config)  # what no file can hold is refused before anything is made
    refuse_unknown(config)
    path, device = folder_of(config), device_of(config.device)
    stack.enter_context(random_numbers_kept())
    stack.enter_context(threads(config.threads))
    workers = stack.enter_context(joined(device, config.fsdp))
    first = workers.rank == 0
    if first:
        stack.enter_context(nothing_left(path))
    together(workers, lambda: stack.enter_context(claimed(path)) if first else None)
    done = together(workers, lambda: _found(path, config))
    if done is not None and (done.finished or (until is not None and done.position.epoch >= until)):
        return None
    training = together(workers, lambda: _made(config, path, workers, device, done))
    logs = together(workers, lambda: _loggers(stack, config, path) if first else [])
    watcher = stack.enter_context(
        watching(progress if first else False, training.course, training.position, config.batch_size)
    )
    return training, training.asking(wish, watcher, logs, until)


@contextmanager
def nothing_left(path: Path) -> Iterator[None]:
    """Takes away the folder of a run that could not be made, with nothing but a lock in it."""
    there = path.exists()
    try:
        yield
    except BaseException:
        if not there and is_empty(path):
            with suppress(OSError, Timeout), FileLock(path / LOCK, timeout=0):
                (path / LOCK).unlink()
                path.rmdir()
        raise


def _found(path: Path, config: Config) -> Committed | None:
    """The checkpoint of a run with this very configuration."""
    said = about(path)
    if said is not None:
        refuse_changes(path, config_in(path, said), config)
    return committed(path)


def _made(config: Config, path: Path, workers: Workers, device: torch.device, done: Committed | None) -> Training:
    """The run, where its folder says that it is."""
    splits = data_of(config)
    task = task_of(splits)
    training = Training(config, path, splits, task, workers, device)
    if done is not None:
        training.go_back_to(done)
    if workers.rank == 0:
        prepare(path, done, training, splits)
    return training


def _loggers(stack: ExitStack, config: Config, path: Path) -> list[Logger]:
    made = []
    for name in config.loggers:
        made.append(logger(name, path, open_run(path).records))
        stack.callback(made[-1].close)
        made[-1].log_params(plain(config))
    return made
