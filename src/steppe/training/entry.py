"""The way into training: a configuration in, a run out."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ..core.process_group import Workers
from ..measures.functional import preserved_rng
from . import records
from .checkpoint import Loaded, last_whole
from .config import Config
from .distributed import device_of, joined, together
from .folder import LOCK, about, claimed, config_in, is_empty, plain, refuse_changes
from .known import refuse_unknown
from .loggers import Logger, logger
from .longer import alike, longer
from .loop import Training
from .problem import data_of, task_of
from .progress import watching
from .runs import Run, open_run
from .start import folder_of, prepare
from .stopping import Wish, listening
from .threads import threads

ONE_AT_A_TIME = threading.RLock()  # runs that one thread trains side by side take it several times


def train(config: Config, progress: bool | None = None, until: int | None = None) -> Run:
    """Trains a run to its end, from its folder's last checkpoint if there is one, and returns it.

    A run that is finished is returned as it is. One that is asked for more epochs or steps goes on if it ends as a run
    of that length would, bit for bit, and is refused otherwise.

    `progress`: True also where there is no terminal, False nowhere.
    `until`: only to the end of that epoch; the run goes on from there. Raises `Stopped` when a signal ends it early.
    Of several threads one trains, and the others wait: random numbers and the number of threads are the process's.
    """
    with ExitStack() as stack:
        wish = stack.enter_context(listening())
        _run(stack, config, wish, progress, until)
        return open_run(folder_of(config), config.model)


def _run(stack: ExitStack, config: Config, wish: Wish, progress: bool | None, until: int | None) -> None:
    """Trains a run from where its folder says that it is, with the folder claimed."""
    plain(config)  # what no file can hold is refused before anything is made
    refuse_unknown(config)
    path, device = folder_of(config), device_of(config.device)
    stack.enter_context(ONE_AT_A_TIME)
    stack.enter_context(preserved_rng())
    workers = stack.enter_context(joined(device, config.fsdp))
    first = workers.rank == 0
    if first:
        stack.enter_context(nothing_left(path))
    mine = together(workers, lambda: stack.enter_context(claimed(path)) if first else None)
    said = together(workers, lambda: about(path))
    done = together(workers, lambda: found(path, said, config))
    stack.enter_context(threads(config.threads or _threads_before(path, said, device)))
    if done is not None and (done.about.finished or (until is not None and done.about.position.epoch >= until)):
        return
    training = together(workers, lambda: _made(config, path, workers, device, done))
    training.mine = mine or training.mine
    logs = together(workers, lambda: _loggers(stack, config, path) if first else [])
    watcher = stack.enter_context(
        watching(progress if first else False, training.course, training.position, config.batch_size)
    )
    training.capture()
    training.run(wish, watcher, logs, until)


def _threads_before(path: Path, said: Mapping[str, Any] | None, device: torch.device) -> int | None:
    """How many threads a run on a CPU had so far: sums over more or fewer of them differ in their last bits."""
    last = said["starts"][-1] if said is not None else {}
    if device.type != "cpu" or last.get("device") != "cpu":
        return None
    before, now = last["threads"], torch.get_num_threads()
    if before != now:
        warnings.warn(
            f"{path} was trained with {before} threads of torch, and this process has {now}: it goes on with {before}, "
            "as it would not end with the same bits otherwise",
            stacklevel=2,
        )
    return int(before)


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


def found(path: Path, said: dict[str, Any] | None, config: Config) -> Loaded | None:
    """The checkpoint that a run with this configuration goes on from, in a folder whose run.yaml says that."""
    before = config_in(path, said) if said is not None else config
    refuse_changes(path, before, config)
    done = last_whole(path, lambda done: records.read(path, done.records))
    if done is None or said is None or alike(before, config):
        return done
    return longer(path, said, before, config, done)


def _made(config: Config, path: Path, workers: Workers, device: torch.device, done: Loaded | None) -> Training:
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
