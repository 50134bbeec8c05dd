"""The start of a run: the checkpoint that it resumes from, also with more epochs or steps than before, and run.yaml.

A longer run resumes only if it ends bit for bit as a run of that length would: nothing so far may depend on the number
of steps. A finished run has evaluated its last epoch as the last one, which it is no longer, and so it resumes from the
checkpoint before its end.
"""

from __future__ import annotations

import inspect
import os
import platform
import socket
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._util import files
from .._util.digests import digest, save_yaml
from .._util.user_code import imported, is_factory
from ..data.dataset import Splits
from . import checkpoint
from .checkpoint import PREVIOUS, RECORDS, WEIGHTS, Checkpoint
from .config import OWN_STEP_SIZE, Config
from .loop import Training
from .problem import fingerprint, options_of
from .runs import FREE, RUN, changes, config_in, plain, read_run_yaml
from .schedule import Position, Timeline, learning_rate, prune_step

LENGTH = ("epochs", "steps")
"""Settings that may grow where the run still ends as one of that length does: see above."""


def resume_point(path: Path, content: Mapping[str, Any] | None, config: Config) -> Checkpoint | None:
    """Return the checkpoint from which a run with this configuration resumes, or None if it starts.

    Parameters
    ----------
    path
        The run's folder.
    content
        The content of its run.yaml, or None if there is none.
    config
        The configuration of this start.

    Raises
    ------
    ValueError
        If the folder holds a run with another configuration, or one that cannot be made longer.

    """
    before = config_in(path, content) if content is not None else config
    if different := changes(plain(before), plain(config), (*FREE, *LENGTH)):
        raise ValueError(
            f"{path} holds a run with another configuration: {different}. A run keeps its configuration: use the old "
            "values, or another out."
        )
    done = checkpoint.load_intact(path)
    if done is None or content is None or all(getattr(before, name) == getattr(config, name) for name in LENGTH):
        return done
    return _longer(path, content, before, config, done)


def _longer(path: Path, content: Mapping[str, Any], before: Config, config: Config, done: Checkpoint) -> Checkpoint:
    """Return the checkpoint from which a run of another length resumes; raise ValueError if there is none."""
    per_epoch = content["steps_per_epoch"]
    then, now = Timeline(content["steps"], per_epoch), Timeline(config.steps or config.epochs * per_epoch, per_epoch)
    if then == now:
        return done
    change = changes(*({k: getattr(c, k) for k in LENGTH} for c in (before, config)))
    if now.steps < then.steps:
        raise ValueError(f"{path} cannot be made shorter: {change}. Give another out.")
    if done.about.finished:
        previous = checkpoint.load(path, PREVIOUS)
        if previous is None:
            raise ValueError(
                f"{path} cannot be made longer: {change}, its last epoch has to be trained again, and {PREVIOUS} is "
                "not there to resume from. Give another out."
            )
        done = previous
    why = _different_past(config, then, now, done.about.position)
    if why:
        raise ValueError(
            f"{path} cannot be made longer: {change}, and a run of that length would have begun differently, because "
            f"{why}. Give another out."
        )
    return done


def _different_past(config: Config, then: Timeline, now: Timeline, position: Position) -> str:
    """Return what would differ, up to a position, in a run of the other length; empty if nothing would."""
    options = options_of(config, then)
    if options != options_of(config, now):
        return f"the method {config.method} depends on the number of steps"
    steps = then.taken(position)
    for step in range(min(steps, 1) if config.method in OWN_STEP_SIZE else steps):
        was, would_be = (learning_rate(config, step, timeline.steps) for timeline in (then, now))
        if was != would_be:
            no_warmup = replace(config, warmup=0.0)
            same = learning_rate(no_warmup, step, then.steps) == learning_rate(no_warmup, step, now.steps)
            what = "warmup" if same else f"schedule {config.schedule}"
            return (
                f"the learning rate of its {what} depends on the number of steps: in step {step + 1} it was "
                f"{was:.6g} and would be {would_be:.6g}"
            )
    if config.prune:
        before, after = prune_step(config, then.steps), prune_step(config, now.steps)
        if before != after and steps > min(before, after):
            return f"its weights would have been pruned before step {after + 1} and not before step {before + 1}"
    if config.swa is not None:
        ends = range(every := 1 if config.swa_every == "step" else then.per_epoch, steps + 1, every)
        if any((t > config.swa * then.steps) != (t > config.swa * now.steps) for t in ends):
            return f"its average swa, which begins after {config.swa:g} of the run, would have averaged other weights"
    return ""


def prepare(path: Path, done: Checkpoint | None, training: Training, splits: Splits) -> None:
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
        _check_records_survive(path)
    elif done.name != WEIGHTS:
        checkpoint.go_back(path)
    checkpoint.sweep(path)
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
        "steps": training.timeline.steps,
        "steps_per_epoch": training.timeline.per_epoch,
        "starts": [*(before["starts"] if before is not None else []), _start(training)],
    }
    save_yaml(path / RUN, content)


def _check_records_survive(path: Path) -> None:
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
    with suppress(TypeError):  # neither a function nor a class
        file = inspect.getsourcefile(inspect.unwrap(imported(name, "model")))
        if file is not None and Path(file).is_file():
            return {"file": file, "digest": digest([Path(file).read_bytes()])}
    return None


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
