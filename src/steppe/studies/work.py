"""Computing a cell: training its run, or reading its checkpoint, and measuring what is still missing."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import isfinite, sqrt
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from .. import __version__
from ..training.config import Config
from .cell import Disagreement, Outcome, Task

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Splits
    from ..training.problem import Task as Problem
    from .drawn import Member

PATIENCE = 60.0  # seconds for another worker's process, whose driver is gone, to let go of a run's folder


def work(task: Task) -> Outcome:
    """Computes a cell. What goes wrong is part of the outcome, so that every engine tells it in the same way."""
    from ..training.stopping import Stopped

    try:
        return _computed(task)
    except Stopped as stop:
        return Outcome(task.cell.key, "stopped", error=str(stop))
    except Exception as error:
        from torch import OutOfMemoryError

        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        transient = isinstance(error, (OSError, MemoryError, OutOfMemoryError))
        transient &= not isinstance(error, FileNotFoundError)  # it will not be there in a moment either
        ends = isinstance(error, Disagreement)
        return Outcome(task.cell.key, "failed", error=str(error) if ends else said, transient=transient, ends=ends)


def _computed(task: Task) -> Outcome:
    from ..measures.named import plan_of
    from ..training.distributed import device_of
    from ..training.flatness import STOPPED, objective_of
    from ..training.threads import threads
    from .drawn import drawn

    start = perf_counter()
    config = Config(**task.cell.config)
    with threads(config.threads):
        model, splits, problem, curves, meta = _found(task, config)
        device = device_of(config.device)
        model, splits = model.to(device).eval(), _moved(splits, device)
        targets, errors = (
            _targets(model, splits, problem, config, curves[-1] if curves else {}) if task.targets else ({}, {})
        )
        task.cell.refuse_disagreement(targets)
        targets = {k: v for k, v in targets.items() if isfinite(v)}
        objective = objective_of(model, problem, splits.train, config.measure_rows)
        from ..measures.run import measured

        results = measured(objective, plan_of(task.measures), config.seed, progress=False)
        if not all(e.complete for e in results.values()) or STOPPED in results.failures.values():
            return Outcome(task.cell.key, "stopped", error="stopped while it was measured")
        try:
            pictures, failures = drawn(task, objective, _members(task)) if task.pictures else ({}, {})
        except KeyboardInterrupt:
            return Outcome(task.cell.key, "stopped", error="stopped while it was drawn")
    measures = {}
    for name, e in results.estimates.items():
        cost = asdict(e.cost)
        seconds = cost.pop("seconds")
        measures[name] = {k: getattr(e, k) for k in ("value", "stderr", "n", "kind", "note", "complete")}
        measures[name] |= {"cost": cost, "seconds": seconds}
    meta |= {"seconds": perf_counter() - start}
    failures |= results.failures
    return Outcome(
        task.cell.key, "done", targets, errors, measures, failures, meta, curves, _versions(), pictures=pictures
    )


Found = tuple["nn.Module", "Splits", "Problem", "list[dict[str, Any]]", dict[str, float]]


def _found(task: Task, config: Config) -> Found:
    return _checkpoint(task, config) if task.cell.checkpoint else _run(task, config)


def _members(task: Task) -> list[Member]:
    """The models of an ensemble with the rows that they are tested on, where each is to be."""
    from ..training.distributed import device_of

    found = []
    for one in task.members:
        config = Config(**one.cell.config)
        model, splits, problem, _, _ = _found(one, config)
        device = device_of(config.device)
        found.append((model.to(device).eval(), splits.test.to(device), problem))
    return found


def _run(task: Task, config: Config) -> Found:
    """The run of a cell, trained to its end from wherever it is."""
    from ..training import train
    from ..training.records import TIMINGS

    folder = Path(task.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=PATIENCE):
        run = train(replace(config, out=str(folder)), progress=False)
    spent = sum(record.get(name) or 0.0 for record in run.records for name in TIMINGS if name.endswith("seconds"))
    meta = {"parameters": float(run.about["parameters"]), "steps": float(run.about["steps"])}
    meta |= {"passes": float(sum(r["passes"] for r in run.records)), "training_seconds": spent}
    return run.model(), run.data(), run.task, run.records, meta


def _checkpoint(task: Task, config: Config) -> Found:
    """A model that somebody else has trained."""
    from .._util.checkpoints import load_into, read_checkpoint
    from ..training import open_run
    from ..training.problem import data_of, model_of, standard_of, task_of

    path = Path(str(task.cell.checkpoint))
    if path.is_dir():
        run = open_run(path, config.model)  # a name that `run` has let pass
        return run.model(), run.data(), run.task, run.records, {"parameters": float(run.about["parameters"])}
    splits = data_of(config)
    problem = task_of(splits, standard_of(str(task.cell.standardise), config, splits))
    model = model_of(config, problem.shape, problem.outputs)
    load_into(model, read_checkpoint(path), path)
    return model, splits, problem, [], {"parameters": float(sum(p.numel() for p in model.parameters()))}


def _targets(
    model: nn.Module, splits: Splits, problem: Problem, config: Config, found: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """Errors and losses of the final weights without augmentation, and the standard errors of those that have one."""
    from ..measures.workers import Workers
    from ..training.evaluate import evaluated, under_corruptions

    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    parts = {"train": splits.train, "test": splits.test, "validation": splits.validation}
    for part, rows in parts.items():
        if rows is None:
            continue
        said = evaluated(model, rows, problem, config, Workers())
        values[f"{part}_loss"] = said["loss"]
        if "accuracy" in said:
            wrong = values[f"{part}_error"] = 1 - said["accuracy"]
            if part != "train":  # new rows would give other errors: binomial; the training rows are what they are
                errors[f"{part}_error"] = sqrt(wrong * (1 - wrong) / len(rows))
    if "test_error" in values:
        values["gap"], errors["gap"] = values["test_error"] - values["train_error"], errors["test_error"]
    values["loss_gap"] = values["test_loss"] - values["train_loss"]
    corrupted = found.get("corrupted_accuracy")
    if corrupted is None and config.corruptions:
        corrupted = under_corruptions(model, splits.test, problem, config, Workers())["corrupted_accuracy"]
    values |= {"corrupted_error": 1 - corrupted} if corrupted is not None else {}
    model.eval()
    return values, errors


def _moved(splits: Splits, device: Any) -> Splits:
    from ..training.problem import moved

    return moved(splits, device)


def _versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "steppe": __version__, "torch": str(torch.__version__), "numpy": numpy.__version__,
        "python": platform.python_version(), "system": platform.platform(),
    }  # fmt: skip
