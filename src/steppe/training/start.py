"""How a run begins or goes on in its folder, and what run.yaml says of it."""

from __future__ import annotations

import inspect
import os
import platform
import re
import socket
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._util.digests import digest
from .._util.user_code import imported
from ..data.dataset import Splits
from ..data.pixels import Standard
from . import files
from .checkpoint import RECORDS, WEIGHTS, Loaded, go_back, sweep
from .config import Config
from .folder import about, plain, write_about
from .loop import Training
from .losses import CrossEntropy, SquaredError
from .problem import Task, fingerprint


def folder_of(config: Config) -> Path:
    """The folder of a run: `out`, or a name that tells what is trained."""
    if config.out is not None:
        return Path(config.out)
    name = f"{config.data}-{config.model}-{config.method}-{config.seed}"
    return Path("runs") / re.sub(r"[^\w.,=+-]+", "_", name)


def prepare(path: Path, done: Loaded | None, training: Training, splits: Splits) -> None:
    """Clears away what an interrupted write left, and writes run.yaml with this start in it."""
    said, data, task, config = about(path), fingerprint(splits), training.task, training.config
    if said is not None and said["data"] != data:
        raise ValueError(
            f"{path} was begun on other rows: {config.data} under {config.data_root} has changed since. Bring the data "
            "back, or give another out."
        )
    if said is not None:
        _tell_changes(path, said["starts"][-1], training)
    if done is None:
        _refuse_to_delete(path)
    elif done.name != WEIGHTS:
        go_back(path)
    sweep(path)
    files.cut(path / RECORDS, done.about.records.length if done is not None else 0)
    write_about(
        path,
        {
            "config": plain(config),
            "data": data,  # a fingerprint of all rows
            "rows": {k: len(v) for k, v in vars(splits).items() if v is not None},
            "task": {
                "shape": list(task.shape),
                "outputs": task.outputs,
                "classes": list(splits.train.classes),
                "mean": list(task.standard.mean),
                "std": list(task.standard.std),
            },
            "parameters": sum(p.numel() for p in training.trainee.bare.parameters()),
            "steps": training.course.steps,
            "steps_per_epoch": training.course.per_epoch,
            "starts": [*(said["starts"] if said is not None else []), _start(training)],
        },
    )


def _refuse_to_delete(path: Path) -> None:
    """Records of two epochs without a checkpoint: it was lost, for every epoch ends with one."""
    lines = (path / RECORDS).read_bytes().count(b"\n") if (path / RECORDS).exists() else 0
    if lines > 1:
        raise FileNotFoundError(
            f"{path / WEIGHTS} is lost, and {RECORDS} has the records of {lines} epochs: a run that starts anew would "
            "delete them. Bring it back from a copy, or give another out."
        )


def _tell_changes(path: Path, before: dict[str, Any], training: Training) -> None:
    """Warns if the user's own factory of the model is in another file than at the last start, or in a changed one."""
    then, now = before.get("factory"), _factory(training.config.model)
    if then is not None and now is not None and then["digest"] != now["digest"]:
        warnings.warn(
            f"{training.config.model}, which makes the model of {path}, has changed since the last start: "
            f"{then['file']} had the digest {then['digest']} and {now['file']} has {now['digest']}. If the model "
            "computes something else now, the run ends as neither of the two would: bring the file back, or give "
            "another out",
            stacklevel=2,
        )


def _factory(name: str) -> dict[str, str] | None:
    """The file of a user's own factory, and its digest; None of our models, and of what has no such file."""
    if ":" not in name:
        return None
    try:
        file = inspect.getsourcefile(inspect.unwrap(imported(name, "model")))
    except TypeError:  # neither a function nor a class
        return None
    if file is None or not Path(file).is_file():
        return None
    return {"file": file, "digest": digest([Path(file).read_bytes()])}


def _start(training: Training) -> dict[str, Any]:
    """When, where and by what the run was started this time."""
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


def task_in(said: dict[str, Any]) -> Task:
    """The task that run.yaml tells of, without its data."""
    task = said["task"]
    standard = Standard(tuple(task["mean"]), tuple(task["std"]))
    return Task(tuple(task["shape"]), task["outputs"], standard, CrossEntropy() if task["classes"] else SquaredError())
