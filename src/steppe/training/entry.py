"""`train`: from a configuration to a finished run, which resumes from the last checkpoint in its folder.

A longer run resumes only if it ends bit for bit as a run of that length would: nothing so far may depend on the number
of steps. A finished run has evaluated its last epoch as the last one, which it is no longer, and so it resumes from the
checkpoint before its end.
"""

from __future__ import annotations

import inspect
import os
import platform
import socket
import threading
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from .. import __version__
from .._util import files
from .._util.digests import digest, save_yaml
from .._util.user_code import imported, is_factory
from ..data.dataset import Splits
from ..measures.session import preserved_rng
from . import checkpoint
from .checkpoint import PREVIOUS, RECORDS, WEIGHTS, Checkpoint
from .config import FREE, Config, check_config
from .distributed import device_of, joined, threads
from .evaluate import corrupted_test
from .folder import (
    HOLDER,
    LOCK,
    RUN,
    Run,
    changes,
    claimed,
    config_in,
    folder_of,
    open_run,
    plain,
    read_run_yaml,
    task_in,
)
from .loggers import Logger, build_logger, in_order, start
from .loop import Training
from .problem import data_of, options_of
from .progress import progress_shown
from .schedule import Position, Timeline, settings_at
from .stopping import stop_signals

ONE_AT_A_TIME = threading.RLock()  # reentrant: an ensemble trains several runs in one thread
LENGTH = ("epochs", "steps")
"""Settings that may grow where the run still ends as one of that length does: see above."""


def train(config: Config, progress: bool | None = None, until: int | None = None, *, lean: bool = False) -> Run:
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
    lean
        Keep run.yaml, records and weights alone of a run that is finished (with averages, all of it): three files. It
        cannot be made longer.

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
    plain(config)  # raises before anything is created if a file cannot hold the configuration
    check_config(config)
    return train_checked(config, progress, until, lean=lean)


def train_checked(config: Config, progress: bool | None = None, until: int | None = None, *, lean: bool = False) -> Run:
    """Train as `train` does, for callers that have checked the configuration."""
    path, device = folder_of(config), device_of(config.device)
    with ExitStack() as stack:
        stop_request = stack.enter_context(stop_signals())
        stack.enter_context(ONE_AT_A_TIME)
        stack.enter_context(preserved_rng())
        workers = stack.enter_context(joined(device, config.fsdp))
        first = workers.rank == 0
        check_folder = workers.together(lambda: stack.enter_context(claimed(path)) if first else None)
        opened = workers.together(lambda: Opened.of(path, config))
        done = opened.done
        stack.enter_context(threads(config.threads or opened.threads(device)))
        if done is not None and (done.about.finished or (until is not None and done.about.position.epoch >= until)):
            run = opened.run()
            run = replace(run, config=replace(run.config, data_root=config.data_root))  # it may be a copy
            workers.together(lambda: _loggers(stack, run, config) if first else [])  # hands over what they lack
            if lean and done.about.finished and first:
                if not done.about.state:
                    checkpoint.keep_weights_alone(path)  # a kill may have left others
                _remove_lock(path)
            return run

        def build() -> tuple[Training, Splits]:
            splits = data_of(config)
            corrupted_test(config, splits.test)  # raises now, not after the last epoch, if official files do not fit
            training = Training(config, path, splits, workers, device, resumed=done is not None)
            if done is not None:
                training.load(done)
            return training, splits

        training, splits = workers.together(build)
        training.check_folder = check_folder or training.check_folder

        def begin() -> tuple[Run, list[Logger]] | None:
            if not first:
                return None
            run = opened.begin(training, splits)
            try:
                return run, _loggers(stack, run, config)
            except BaseException:  # leave no run behind that had not begun before
                if opened.about is None and {p.name for p in path.iterdir()} <= {RUN, LOCK, HOLDER}:
                    files.remove(path / RUN)
                raise

        begun = workers.together(begin)
        display = stack.enter_context(
            progress_shown(progress if first else False, training.timeline, training.position, config.batch_size)
        )
        training.capture()
        training.lean = lean
        training.run(stop_request, display, begun[1] if begun is not None else [], until)
        if begun is None:
            return open_run(path, config.model)
        finished = training.position.epoch == training.timeline.epochs
        if lean and finished:
            _remove_lock(path)
        return replace(begun[0], records=training.records, position=training.position, finished=finished)


def _remove_lock(path: Path) -> None:
    """Remove the file by which this process has locked a finished run: whoever comes next only reads it."""
    with suppress(OSError):  # Windows keeps files that are open
        files.remove(path / LOCK)


def _loggers(stack: ExitStack, run: Run, config: Config) -> list[Logger]:
    """Build and start all loggers, or none; the stack closes them."""
    with ExitStack() as opened:
        loggers = []
        for name in in_order(config.loggers):
            loggers.append(build_logger(name, run))
            opened.callback(loggers[-1].close)
        for logger in loggers:
            start(logger, run, plain(config))
        stack.enter_context(opened.pop_all())
    return loggers


@dataclass(frozen=True)
class Opened:
    """The folder of a run as a start finds it.

    Attributes
    ----------
    path
        The folder.
    about
        The content of run.yaml; None if there is none.
    before
        The configuration in run.yaml; that of this start if there is none.
    done
        The checkpoint from which the run resumes; None if it starts.

    """

    path: Path
    about: dict[str, Any] | None
    before: Config
    done: Checkpoint | None

    @classmethod
    def of(cls, path: Path, config: Config) -> Opened:
        """Read a folder; raise ValueError for a run of another configuration, and for one that cannot be longer."""
        about = read_run_yaml(path)
        before = config_in(path, about) if about is not None else config
        if different := changes(plain(before), plain(config), (*FREE, *LENGTH)):
            raise ValueError(
                f"{path} holds a run with another configuration: {different}. A run keeps its configuration: use the "
                "old values, or another out."
            )
        done = checkpoint.load_intact(path)
        if done is None or about is None or all(getattr(before, name) == getattr(config, name) for name in LENGTH):
            return cls(path, about, before, done)
        per_epoch = about["steps_per_epoch"]
        then, now = Timeline(about["steps"], per_epoch), Timeline(config.steps or config.epochs * per_epoch, per_epoch)
        if then == now:
            return cls(path, about, before, done)
        change = changes(*({k: getattr(c, k) for k in LENGTH} for c in (before, config)))
        if now.steps < then.steps:
            raise ValueError(f"{path} cannot be made shorter: {change}. Give another out.")
        if done.about.finished:
            done = checkpoint.load(path, PREVIOUS)
            if done is None:
                raise ValueError(
                    f"{path} cannot be made longer: {change}, its last epoch has to be trained again, and {PREVIOUS} "
                    "is not there to resume from. Give another out."
                )
        if why := _different_past(config, then, now, done.about.position):
            raise ValueError(
                f"{path} cannot be made longer: {change}, and a run of that length would have begun differently, "
                f"because {why}. Give another out."
            )
        return cls(path, about, before, done)

    def threads(self, device: torch.device) -> int | None:
        """Return the number of torch threads of the last start on a CPU: sums over another number round differently."""
        last = self.about["starts"][-1] if self.about is not None else {}
        if device.type != "cpu" or last.get("device") != "cpu":
            return None
        before, now = int(last["threads"]), torch.get_num_threads()
        if before != now:
            warnings.warn(
                f"{self.path} was trained with {before} threads of torch, and this process has {now}: it resumes with "
                f"{before}, because results would not be bit-identical otherwise",
                stacklevel=3,
            )
        return before

    def run(self) -> Run:
        """Return the run as of its checkpoint."""
        if self.about is None or self.done is None:
            raise FileNotFoundError(f"{self.path} holds no run with a checkpoint")
        header, task = self.done.about, task_in(self.about)
        named = self.before.model
        return Run(self.path, self.before, self.done.records, header.position, header.finished, task, self.about, named)

    def begin(self, training: Training, splits: Splits) -> Run:
        """Delete what an interrupted write left, and write run.yaml with this start in it; return the run."""
        path, before, done, config, task = self.path, self.about, self.done, training.config, training.task
        data, factory = splits.digest, _factory(config.model)
        init = asdict(training.init) if training.init is not None else (before or {}).get("init")
        if before is not None:
            if before["data"] != data:
                raise ValueError(
                    f"{path} was begun on other rows: {config.data} under {config.data_root} has changed since. "
                    "Restore the data, or give another out."
                )
            if before.get("init", init) != init:
                raise ValueError(
                    f"{path} was begun from other weights: {config.init} has changed since. Restore it, or give "
                    "another out."
                )
            then = before["starts"][-1].get("factory")
            if then is not None and factory is not None and then["digest"] != factory["digest"]:
                warnings.warn(
                    f"{config.model}, which builds the model of {path}, has changed since the last start: "
                    f"{then['file']} had the digest {then['digest']} and {factory['file']} has {factory['digest']}. If "
                    "the model computes something else now, the result matches neither version: restore the file, or "
                    "give another out",
                    stacklevel=3,
                )
        if done is None:
            lines = (path / RECORDS).read_bytes().count(b"\n") if (path / RECORDS).exists() else 0
            if lines > 1:  # the first epoch writes a checkpoint
                raise FileNotFoundError(
                    f"{path / WEIGHTS} is lost, and {RECORDS} has the records of {lines} epochs: restarting the run "
                    "would delete them. Restore it from a copy, or give another out."
                )
        elif done.name != WEIGHTS:
            checkpoint.go_back(path)
        referenced = {done.about.state} if done is not None else set()
        with suppress(ValueError, FileNotFoundError):  # a damaged or lost checkpoint references nothing
            previous = checkpoint.read_header(path, PREVIOUS)
            referenced |= {previous.state} if previous is not None else set()
        checkpoint.sweep(path, referenced)
        files.truncate(path / RECORDS, done.about.records.length if done is not None else 0)
        device = training.device
        about = {
            "config": plain(config),
            "data": data,  # a fingerprint of all rows
            "rows": {name: len(part) for name, part in splits.parts.items()},
            "task": {
                "shape": list(task.shape),
                "outputs": task.outputs,
                "classes": list(splits.train.classes),
                "mean": list(task.standard.mean),
                "std": list(task.standard.std),
                **({"fields": list(task.fields)} if task.fields else {}),
            },
            **({"init": init} if init is not None else {}),  # with a digest
            "parameters": sum(p.numel() for p in training.state.module.parameters()),
            "steps": training.timeline.steps,
            "steps_per_epoch": training.timeline.per_epoch,
            "starts": [
                *(before["starts"] if before is not None else []),
                {
                    "id": uuid4().hex,  # of the run in the stores of loggers, if it is its first start
                    "when": datetime.now(UTC).isoformat(timespec="seconds"),
                    "at": f"{training.position}",
                    "steppe": __version__,
                    "torch": str(torch.__version__),
                    "python": platform.python_version(),
                    "system": platform.platform(),
                    "host": socket.gethostname(),
                    "process": os.getpid(),
                    "processes": training.workers.count,
                    "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
                    "threads": torch.get_num_threads(),
                    **({"factory": factory} if factory is not None else {}),
                },
            ],
        }
        save_yaml(path / RUN, about)
        return Run(path, config, training.records, training.position, False, task, about, config.model)


def _factory(name: str) -> dict[str, str] | None:
    """Return the file and digest of a user's model factory; None for steppe's models and where there is no file."""
    if not is_factory(name):
        return None
    with suppress(TypeError):  # neither a function nor a class
        file = inspect.getsourcefile(inspect.unwrap(imported(name, "model")))
        if file is not None and Path(file).is_file():
            return {"file": file, "digest": digest([Path(file).read_bytes()])}
    return None


def _different_past(config: Config, then: Timeline, now: Timeline, position: Position) -> str:
    """Return what would differ, up to a position, in a run of the other length; empty if nothing would."""
    depends = "depends on the number of steps"
    if options_of(config, then) != options_of(config, now):
        return f"the method {config.method} {depends}"
    for step in range(then.taken(position)):
        did, would_do = (settings_at(config, step, timeline) for timeline in (then, now))
        for name, was in did.items():
            if was != would_do[name]:
                before, after = (f"{x:.6g}" if isinstance(x, float) else x for x in (was, would_do[name]))
                return f"its {name} {depends}: in step {step + 1} it was {before}, and would be {after}"
    return ""
