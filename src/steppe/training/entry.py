"""`train`: from a configuration to a finished run."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from .._util import files
from ..core.process_group import Workers
from ..measures.functional import preserved_rng
from .checkpoint import Checkpoint
from .config import Config, check_config
from .distributed import device_of, joined, threads, together
from .evaluate import corrupted_test
from .loggers import Logger, build_logger, in_order, start
from .loop import Training
from .problem import data_of, task_of
from .progress import progress_shown
from .resume import prepare, resume_point
from .runs import HOLDER, LOCK, RUN, Run, claimed, folder_of, is_empty, open_run, plain, read_run_yaml
from .stopping import StopRequest, stop_signals

ONE_AT_A_TIME = threading.RLock()  # reentrant: an ensemble trains several runs in one thread


def train(config: Config, progress: bool | None = None, until: int | None = None) -> Run:
    """Train a run to its end, resuming from the last checkpoint in its folder.

    A finished run is returned as it is, after its loggers have the records that they lack. A run that is given more
    epochs or steps resumes if it ends bit for bit as a run of that length would. Threads of one process train one after
    the other, because random numbers and the number of torch threads belong to the process.

    Parameters
    ----------
    config
        The run. Its folder is `config.out`, or runs/ and a name.
    progress
        Show progress: by default where stderr is a terminal; True also elsewhere; False never.
    until
        Stop at the end of this epoch. A later call resumes from there.

    Returns
    -------
    Run
        The run as of its last checkpoint.

    Raises
    ------
    Stopped
        If SIGTERM or SIGINT ends the run early; its checkpoint is written.
    ValueError
        If the configuration names something unknown, or the folder holds a run with another configuration.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = steppe.training.train(steppe.training.Config(**small, out=folder))
    >>> run.finished, run.result["step"], run.result["passes"]  # SAM takes two passes
    (True, 1, 2)

    """
    with ExitStack() as stack:
        stop_request = stack.enter_context(stop_signals())
        _train(stack, config, stop_request, progress, until)
        return open_run(folder_of(config), config.model)


def _train(
    stack: ExitStack, config: Config, stop_request: StopRequest, progress: bool | None, until: int | None
) -> None:
    plain(config)  # raises before anything is created if a file cannot hold the configuration
    check_config(config)
    path, device = folder_of(config), device_of(config.device)
    stack.enter_context(ONE_AT_A_TIME)
    stack.enter_context(preserved_rng())
    workers = stack.enter_context(joined(device, config.fsdp))
    first = workers.rank == 0
    if first:
        stack.enter_context(_removed_on_failure(path))
    check_folder = together(workers, lambda: stack.enter_context(claimed(path)) if first else None)
    content = together(workers, lambda: read_run_yaml(path))
    done = together(workers, lambda: resume_point(path, content, config))
    stack.enter_context(threads(config.threads or _threads_before(path, content, device)))
    if done is not None and (done.about.finished or (until is not None and done.about.position.epoch >= until)):
        together(workers, lambda: _loggers(stack, config, path) if first else [])  # hands over what they do not have
        return
    training = together(workers, lambda: _build(config, path, workers, device, done))
    training.check_folder = check_folder or training.check_folder
    loggers = together(workers, lambda: _loggers(stack, config, path, begun=content is not None) if first else [])
    display = stack.enter_context(
        progress_shown(progress if first else False, training.timeline, training.position, config.batch_size)
    )
    training.capture()
    training.run(stop_request, display, loggers, until)


def _threads_before(path: Path, content: Mapping[str, Any] | None, device: torch.device) -> int | None:
    """Return the number of torch threads of the last start on a CPU: sums over another number round differently."""
    last = content["starts"][-1] if content is not None else {}
    if device.type != "cpu" or last.get("device") != "cpu":
        return None
    before, now = last["threads"], torch.get_num_threads()
    if before != now:
        warnings.warn(
            f"{path} was trained with {before} threads of torch, and this process has {now}: it resumes with {before}, "
            "because results would not be bit-identical otherwise",
            stacklevel=2,
        )
    return int(before)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Remove the folder if this start created it and fails before anything but the lock is in it."""
    existed = path.exists()
    try:
        yield
    except BaseException:
        if not existed and is_empty(path):
            with suppress(OSError, Timeout), FileLock(path / LOCK, timeout=0):
                (path / LOCK).unlink()
                path.rmdir()
        raise


def _build(config: Config, path: Path, workers: Workers, device: torch.device, done: Checkpoint | None) -> Training:
    """Build the run in the state of a checkpoint, and write run.yaml."""
    splits = data_of(config)
    corrupted_test(config, splits.test)  # raises now, and not after the last epoch, if official files do not fit
    training = Training(config, path, splits, task_of(splits), workers, device, resumed=done is not None)
    if done is not None:
        training.load(done)
    if workers.rank == 0:
        prepare(path, done, training, splits)
    return training


def _loggers(stack: ExitStack, config: Config, path: Path, begun: bool = True) -> list[Logger]:
    """Build and start all loggers; if one fails when the run has not begun, leave no run behind."""
    try:
        with ExitStack() as opened:
            run, loggers = open_run(path), []
            for name in in_order(config.loggers):
                loggers.append(build_logger(name, run))
                opened.callback(loggers[-1].close)
            for logger in loggers:
                start(logger, run, plain(config))
            stack.enter_context(opened.pop_all())
    except BaseException:
        if not begun and {p.name for p in path.iterdir()} <= {RUN, LOCK, HOLDER}:
            files.remove(path / RUN)
        raise
    return loggers
