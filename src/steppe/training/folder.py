"""A run's folder: one process at a time, one configuration, and run.yaml, which records both."""

from __future__ import annotations

import inspect
import json
import os
import platform
import re
import socket
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._util import files
from .._util.digests import digest, read_yaml, save_yaml
from .._util.locks import FolderLocked, lock_folder
from .._util.names import unknown
from .._util.types import fits, words
from .._util.user_code import imported, is_factory
from ..data.dataset import Splits
from ..data.pixels import Standard
from .checkpoint import PREVIOUS, RECORDS, WEIGHTS, Loaded, go_back, sweep
from .config import Config
from .loop import Training
from .losses import CrossEntropy, SquaredError
from .problem import Task, fingerprint

RUN = "run.yaml"
NAME = "run"  # of its lock
LOCK, HOLDER = f"{NAME}.lock", f"{NAME}.holder"

# required entries of run.yaml beside the configuration
KEYS = {"data": str, "task": dict, "parameters": int, "steps": int, "starts": list[Any]}
TASK = {"shape": list[int], "outputs": int, "classes": list[Any], "mean": list[float], "std": list[float]}

FREE = ("out", "data_root", "loggers", "checkpoint_every")
"""Settings that may change from one start of a run to the next."""
LENGTH = ("epochs", "steps")
"""Settings that may grow where the run still ends as one of that length does: see `resume.py`."""


def folder_of(config: Config, strategy: str | None = None) -> Path:
    """Return the folder of a run: `out`, or a name made from data, model, method (or strategy of members) and seed."""
    if config.out is not None:
        return Path(config.out)
    name = f"{config.data}-{config.model}-{strategy or config.method}-{config.seed}"
    return Path("runs") / re.sub(r"[^\w.,=+-]+", "_", name)


@contextmanager
def claimed(path: Path) -> Iterator[Callable[[], None]]:
    """Lock the folder for this process; raise RuntimeError with the name of the process that has it.

    Yields a function that raises if another folder has replaced this one.
    """
    path.mkdir(parents=True, exist_ok=True)
    _refuse_other_folders(path)
    with ExitStack() as stack:
        try:
            check_folder = stack.enter_context(lock_folder(path, NAME))
        except FolderLocked as owner:
            raise RuntimeError(
                f"{path} is being trained in by {owner}: wait for it, stop it, or choose another folder with out"
            ) from None
        yield check_folder


def _refuse_other_folders(path: Path) -> None:
    """Raise if a folder holds other files and no run."""
    ours = {LOCK, HOLDER, RUN, RECORDS, WEIGHTS, PREVIOUS}
    others = sorted(p.name for p in path.iterdir() if p.name not in ours and not p.name.endswith(files.TEMPORARY))
    if others and not (path / RUN).exists():
        raise FileExistsError(
            f"{path} is no run's folder: it has no {RUN}, but {', '.join(others[:3])}. Choose another"
        )


def is_empty(path: Path) -> bool:
    """Return whether a folder holds only a lock: a start that failed, was killed, or is in progress."""
    return path.is_dir() and {p.name for p in path.iterdir()} in ({LOCK}, {LOCK, HOLDER})


def read_run_yaml(path: Path) -> dict[str, Any] | None:
    """Read run.yaml, or return None if there is none."""
    return read_yaml(path / RUN, "a run", lambda content: content["config"].keys()) if (path / RUN).exists() else None


def plain(config: Config) -> dict[str, Any]:
    """Return a configuration in JSON's types, for files and comparisons."""

    def path_or_error(x: Any) -> str:
        if isinstance(x, os.PathLike):
            return str(os.fspath(x))
        raise TypeError(
            f"a configuration is written to a file, and {x!r} cannot be: use numbers, strings, lists and dicts"
        )

    values: dict[str, Any] = json.loads(json.dumps(asdict(config), default=path_or_error))
    return values


def config_in(path: Path, content: Mapping[str, Any]) -> Config:
    """Return the configuration in the content of run.yaml; raise ValueError if the file is incomplete."""
    names = {f.name for f in fields(Config)}
    strange = [k for k in content["config"] if k not in names]
    if strange:
        raise ValueError(f"{path / RUN}: {unknown('setting', strange[0], names)} Was it written by another steppe?")
    try:
        config = Config(**content["config"])
    except ValueError as error:
        raise ValueError(f"{path / RUN}: config: {error}") from error
    _refuse_incomplete(path / RUN, content, KEYS)
    _refuse_incomplete(path / RUN, content["task"], TASK, "task.")
    return config


def _refuse_incomplete(file: Path, content: Mapping[str, Any], keys: Mapping[str, Any], place: str = "") -> None:
    for key, kind in keys.items():
        if key not in content or not fits(content[key], kind):
            value = f"is {content[key]!r}" if key in content else "is missing"
            raise ValueError(
                f"{file} is incomplete: {place}{key} {value}, and has to be {words(kind)}. Restore the file, or train "
                "in another folder"
            )


def task_in(content: Mapping[str, Any]) -> Task:
    """Return the task in the content of run.yaml, without reading its data."""
    task = content["task"]
    standard = Standard(tuple(task["mean"]), tuple(task["std"]))
    loss = CrossEntropy() if task["classes"] else SquaredError()
    return Task(tuple(task["shape"]), task["outputs"], standard, loss, tuple(task.get("fields", ())))


def changes(then: Mapping[str, Any], now: Mapping[str, Any], free: Container[str] = ()) -> str:
    """Return which settings differ and how, in words, without those in `free`; empty if none do."""
    different = [k for k in now if k not in free and then.get(k) != now[k]]
    return "; ".join(f"{k} was {then.get(k)!r} and is now {now[k]!r}" for k in different)


def refuse_changes(path: Path, before: Config, config: Config) -> None:
    """Raise if a setting differs that may not change during a run."""
    if different := changes(plain(before), plain(config), (*FREE, *LENGTH)):
        raise ValueError(
            f"{path} holds a run with another configuration: {different}. A run keeps its configuration: use the old "
            "values, or another out."
        )


def prepare(path: Path, done: Loaded | None, training: Training, splits: Splits) -> None:
    """Delete what an interrupted write left, and write run.yaml with this start in it."""
    before, data, task, config = read_run_yaml(path), fingerprint(splits), training.task, training.config
    if before is not None and before["data"] != data:
        raise ValueError(
            f"{path} was begun on other rows: {config.data} under {config.data_root} has changed since. Restore the "
            "data, or give another out."
        )
    init = asdict(training.init) if training.init is not None else (before or {}).get("init")
    if before is not None and before.get("init", init) != init:
        raise ValueError(
            f"{path} was begun from other weights: {config.init} has changed since. Restore it, or give another out."
        )
    if before is not None:
        _warn_of_changed_factory(path, before["starts"][-1], training)
    if done is None:
        _refuse_to_delete_records(path)
    elif done.name != WEIGHTS:
        go_back(path)
    sweep(path)
    files.truncate(path / RECORDS, done.about.records.length if done is not None else 0)
    content = {
        "config": plain(config),
        "data": data,  # a fingerprint of all rows
        "rows": {k: len(v) for k, v in vars(splits).items() if v is not None},
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
        "steps": training.course.steps,
        "steps_per_epoch": training.course.per_epoch,
        "starts": [*(before["starts"] if before is not None else []), _start(training)],
    }
    save_yaml(path / RUN, content)


def _refuse_to_delete_records(path: Path) -> None:
    """Raise if there are records of two epochs and no checkpoint: it was lost, because the first epoch writes one."""
    lines = (path / RECORDS).read_bytes().count(b"\n") if (path / RECORDS).exists() else 0
    if lines > 1:
        raise FileNotFoundError(
            f"{path / WEIGHTS} is lost, and {RECORDS} has the records of {lines} epochs: restarting the run would "
            "delete them. Restore it from a copy, or give another out."
        )


def _warn_of_changed_factory(path: Path, last_start: dict[str, Any], training: Training) -> None:
    then, now = last_start.get("factory"), _factory(training.config.model)
    if then is not None and now is not None and then["digest"] != now["digest"]:
        warnings.warn(
            f"{training.config.model}, which builds the model of {path}, has changed since the last start: "
            f"{then['file']} had the digest {then['digest']} and {now['file']} has {now['digest']}. If the model "
            "computes something else now, the result matches neither version: restore the file, or give another out",
            stacklevel=2,
        )


def _factory(name: str) -> dict[str, str] | None:
    """Return the file and digest of a user's model factory; None for steppe's models and where there is no file."""
    if not is_factory(name):
        return None
    try:
        file = inspect.getsourcefile(inspect.unwrap(imported(name, "model")))
    except TypeError:  # neither a function nor a class
        return None
    if file is None or not Path(file).is_file():
        return None
    return {"file": file, "digest": digest([Path(file).read_bytes()])}


def _start(training: Training) -> dict[str, Any]:
    """Return when, where and with which versions the run was started."""
    device = training.device
    return {
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
        **({"factory": factory} if (factory := _factory(training.config.model)) is not None else {}),
    }
