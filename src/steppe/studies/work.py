"""Computing a cell: train its run or read its checkpoint, evaluate it, and measure what is missing."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import isfinite, sqrt
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock

from .. import __version__
from ..training.config import Config
from .cell import Disagreement, Outcome, Task

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Splits
    from ..training.problem import Task as Problem
    from .pictures import Member

PATIENCE = 60.0  # seconds for a worker whose driver ended to release a run's folder


class Trained(NamedTuple):
    """A trained model with its data, the records of its epochs, and numbers about it."""

    model: nn.Module
    splits: Splits
    problem: Problem
    records: list[dict[str, Any]]
    meta: dict[str, float]


def work(task: Task) -> Outcome:
    """Compute a task. Errors become part of the outcome, so that all engines report them alike."""
    from ..training.stopping import Stopped

    try:
        return _compute(task)
    except Stopped as stop:
        return Outcome(task.cell.key, "stopped", error=str(stop))
    except Disagreement as error:
        return Outcome(task.cell.key, "failed", error=str(error), ends=True)
    except Exception as error:
        from torch import OutOfMemoryError

        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        transient = isinstance(error, (OSError, MemoryError, OutOfMemoryError))
        transient &= not isinstance(error, FileNotFoundError)  # a retry does not find it either
        return Outcome(task.cell.key, "failed", error=message, transient=transient)


def _compute(task: Task) -> Outcome:
    from ..measures.registry import resolve_measures
    from ..measures.run import STOPPED, measure_objective
    from ..training.distributed import device_of, threads
    from ..training.evaluate import objective_of, on_data
    from ..training.problem import moved
    from .pictures import draw

    start = perf_counter()
    config = Config(**task.cell.config)
    with threads(config.threads):
        trained = _trained(task, config)
        device = device_of(config.device)
        model, splits = trained.model.to(device).eval(), moved(trained.splits, device)
        targets: dict[str, float] = {}
        errors: dict[str, float] = {}
        if task.targets:
            last = trained.records[-1] if trained.records else {}
            targets, errors = _targets(model, splits, trained.problem, config, last)
            for name, (error, rows) in _shifted_errors(model, splits, trained.problem, task.ood).items():
                targets[name], errors[name] = error, sqrt(error * (1 - error) / rows)
        task.cell.check_known(targets)
        objective = objective_of(model, trained.problem, splits.train, config.measure_rows)
        plan, on = resolve_measures(task.measures), on_data(model, trained.problem, splits, config)
        results = measure_objective(objective, plan, config.seed, progress=False, on=on)
        if not all(e.complete for e in results.values()) or STOPPED in results.failures.values():
            return Outcome(task.cell.key, "stopped", error="stopped while it was measured")
        try:
            pictures, failures = draw(task, objective, _members(task)) if task.pictures else ({}, {})
        except KeyboardInterrupt:
            return Outcome(task.cell.key, "stopped", error="stopped while it was drawn")
    measures = {}
    for name, e in results.estimates.items():
        cost = asdict(e.cost)
        seconds = cost.pop("seconds")
        measures[name] = {k: getattr(e, k) for k in ("value", "stderr", "n", "kind", "note", "complete")}
        measures[name] |= {"cost": cost, "seconds": seconds}
    return Outcome(
        task.cell.key,
        "done",
        {k: v for k, v in targets.items() if isfinite(v)},
        errors,
        measures,
        {**failures, **results.failures},
        trained.meta | {"seconds": perf_counter() - start},
        [_curve(record) for record in trained.records],
        _versions(),
        pictures=pictures,
    )


def _trained(task: Task, config: Config) -> Trained:
    return _checkpoint(task, config) if task.cell.checkpoint else _run(task, config)


def _members(task: Task) -> list[Member]:
    """The members of an ensemble or of a comparison, each on its device."""
    from ..training.distributed import device_of
    from ..training.problem import moved
    from .pictures import Member

    members = []
    for one in task.members:
        config = Config(**one.cell.config)
        trained = _trained(one, config)
        device = device_of(config.device)
        model, splits = trained.model.to(device).eval(), moved(trained.splits, device)
        members.append(Member(model, splits, trained.problem, config.measure_rows))
    return members


def _run(task: Task, config: Config) -> Trained:
    """Train the run of a cell, or resume it."""
    from ..training import train
    from ..training.folder import read_run_yaml
    from ..training.records import TIMINGS

    folder = Path(task.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=PATIENCE):
        along: dict[str, Any] = {"measures": list(task.along), "measure_every": task.measure_every}
        if (started := read_run_yaml(folder)) is not None:  # records of its epochs cannot be added any more
            along = {name: started["config"][name] for name in along}
        run = train(replace(config, out=str(folder), **along), progress=False)
    seconds = sum(record.get(name) or 0.0 for record in run.records for name in TIMINGS if name.endswith("seconds"))
    meta = {"parameters": float(run.about["parameters"]), "steps": float(run.about["steps"])}
    meta |= {"passes": float(sum(r["passes"] for r in run.records)), "training_seconds": seconds}
    return Trained(run.model(), run.data(), run.task, run.records, meta)


def _checkpoint(task: Task, config: Config) -> Trained:
    """Read a checkpoint of the pool."""
    from .._util.checkpoints import load_into, read_checkpoint
    from ..training import open_run
    from ..training.problem import data_of, model_of, standard_of, task_of

    path = Path(str(task.cell.checkpoint))
    if path.is_dir():
        run = open_run(path, config.model)  # `check_trust` has allowed the name
        meta = {"parameters": float(run.about["parameters"])}
        return Trained(run.model(), run.data(), run.task, run.records, meta)
    splits = data_of(config)
    problem = task_of(splits, standard_of(str(task.cell.normalise), config, splits))
    model = model_of(config, problem.shape, problem.outputs)
    load_into(model, read_checkpoint(path), path)
    return Trained(model, splits, problem, [], {"parameters": float(sum(p.numel() for p in model.parameters()))})


def _targets(
    model: nn.Module, splits: Splits, problem: Problem, config: Config, last: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, float]]:
    """Errors and losses of the final weights without augmentation, and their standard errors where they have one.

    `last` is the record of the last epoch.
    """
    from ..core.process_group import Workers
    from ..training.evaluate import evaluated, under_corruptions

    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    parts = {"train": splits.train, "test": splits.test, "validation": splits.validation}
    for part, rows in parts.items():
        if rows is None:
            continue
        scores = evaluated(model, rows, problem, config, Workers())
        values[f"{part}_loss"] = scores["loss"]
        if "accuracy" in scores:
            wrong = values[f"{part}_error"] = 1 - scores["accuracy"]
            if part != "train":  # binomial: new rows would give another error; the training rows are fixed
                errors[f"{part}_error"] = sqrt(wrong * (1 - wrong) / len(rows))
    if "test_error" in values:
        values["gap"], errors["gap"] = values["test_error"] - values["train_error"], errors["test_error"]
    values["loss_gap"] = values["test_loss"] - values["train_loss"]
    corrupted = last.get("corrupted_accuracy")
    if corrupted is None and config.corruptions:
        corrupted = under_corruptions(model, splits.test, problem, config, Workers())["corrupted_accuracy"]
    values |= {"corrupted_error": 1 - corrupted} if corrupted is not None else {}
    model.eval()
    return values, errors


def _shifted_errors(
    model: nn.Module, splits: Splits, problem: Problem, ood: Mapping[str, str]
) -> dict[str, tuple[float, int]]:
    """Errors on test sets under another distribution, each with its number of rows."""
    from ..data import shifted
    from ..ensembles.scores import logits

    errors = {}
    for name, place in ood.items():
        tests = shifted.read(place, splits.train)
        outputs = logits([model], tests.rows.to(splits.train.inputs.device), problem)[0]
        errors[f"{name}_error"] = tests.error(outputs), len(tests.rows)
    return errors


def _curve(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an epoch with its measures' values beside its other numbers, as curves are read."""
    measures: Mapping[str, Any] = record.get("measures", {})
    return {name: m["value"] for name, m in measures.items() if "value" in m} | dict(record)


def _versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "steppe": __version__, "torch": str(torch.__version__), "numpy": numpy.__version__,
        "python": platform.python_version(), "system": platform.platform(),
    }  # fmt: skip
