"""Computing a cell: train its run or read its checkpoint, evaluate it, and measure what is missing."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import isfinite, sqrt
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock

from .. import __version__
from ..data.registry import loaded_once
from ..training.config import Config
from .cell import CORRUPTED_ROWS, Disagreement, Outcome, Task, targets_of
from .ensemble import evaluate, mean_records, measured_along, split_measures
from .grid import split

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Splits
    from ..ensembles.strategies import Ensemble
    from ..measures.estimate import Estimate
    from ..training.problem import Task as Problem
    from ..training.runs import Run
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
        with loaded_once():  # training and evaluation
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
    config, ensemble = split(task.cell.config)
    with threads(config.threads):
        if ensemble is not None:
            return _ensemble(task, config, ensemble)
        trained = _trained(task, config)
        device = device_of(config.device)
        model, splits = trained.model.to(device).eval(), moved(trained.splits, device)
        targets: dict[str, float] = {}
        errors: dict[str, float] = {}
        versions = _versions(config.device)
        if task.targets:
            last = trained.records[-1] if trained.records else {}
            targets, errors, source = _targets(model, splits, trained.problem, config, last)
            versions |= {f"{CORRUPTED_ROWS}{config.data}": source} if source else {}
            for name, (error, rows) in _shifted_errors(model, splits, trained.problem, task.ood).items():
                targets[name], errors[name] = error, sqrt(error * (1 - error) / rows)
        task.cell.check_known(targets)
        objective = objective_of(model, trained.problem, splits.train, config.measure_rows)
        of_models, scores = split_measures(task.measures)
        plan, on = resolve_measures(of_models), on_data(model, trained.problem, splits, config)
        results = measure_objective(objective, plan, config.seed, progress=False, on=on)
        if not all(e.complete for e in results.values()) or STOPPED in results.failures.values():
            return Outcome(task.cell.key, "stopped", error="stopped while it was measured")
        try:
            pictures, failures = draw(task, objective, _members(task)) if task.pictures else ({}, {})
        except KeyboardInterrupt:
            return Outcome(task.cell.key, "stopped", error="stopped while it was drawn")
    failures |= {name: f"{name} is a score of ensembles, and this is one model" for name in scores}
    return Outcome(
        task.cell.key,
        "done",
        {k: v for k, v in targets.items() if isfinite(v)},
        errors,
        _plain(results.estimates),
        {**failures, **results.failures},
        trained.meta | {"seconds": perf_counter() - start},
        [_curve(record) for record in trained.records],
        versions,
        pictures=pictures,
    )


def _ensemble(task: Task, config: Config, ensemble: Ensemble) -> Outcome:
    """Train the members of an ensemble, or resume them, and evaluate it."""
    from ..ensembles.members import begun, exchange_seconds
    from ..ensembles.train import train_ensemble

    start, folder = perf_counter(), Path(task.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=PATIENCE):
        along: dict[str, Any] = {"measures": measured_along(task.along), "measure_every": task.measure_every}
        if (before := begun(folder)) is not None:  # records of its epochs cannot be added any more
            along = {name: getattr(before, name) for name in along}
        trained = train_ensemble(replace(config, out=str(folder), **along), ensemble, progress=False)
    try:
        numbers = evaluate(trained, task.measures)
    except KeyboardInterrupt:
        return Outcome(task.cell.key, "stopped", error="stopped while it was measured")
    metas = [_meta(run) for run in trained.runs]
    meta = {name: sum(each[name] for each in metas) for name in metas[0]}
    if (scores := exchange_seconds(trained)) is not None:
        meta |= {"exchange_seconds": scores, "training_seconds": meta["training_seconds"] + scores}
    return Outcome(
        task.cell.key,
        "done",
        {k: v for k, v in numbers.targets.items() if isfinite(v)},
        numbers.target_errors,
        _plain(numbers.measures),
        numbers.failures,
        meta | {"seconds": perf_counter() - start},
        mean_records([[_curve(record) for record in run.records] for run in trained.runs]),
        {**_versions(config.device), **numbers.sources},
    )


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """Estimates as an outcome holds them."""
    measures = {}
    for name, e in estimates.items():
        cost = asdict(e.cost)
        seconds = cost.pop("seconds")
        measures[name] = {k: getattr(e, k) for k in ("value", "stderr", "n", "kind", "note", "complete")}
        measures[name] |= {"cost": cost, "seconds": seconds}
    return measures


def _trained(task: Task, config: Config) -> Trained:
    return _checkpoint(task, config) if task.cell.checkpoint else _run(task, config)


def _members(task: Task) -> list[Member]:
    """The members of an ensemble or of a comparison, each on its device."""
    from ..training.distributed import device_of
    from ..training.problem import moved
    from .pictures import Member

    members = []
    for one in task.members:
        config, _ = split(one.cell.config)
        trained = _trained(one, config)
        device = device_of(config.device)
        model, splits = trained.model.to(device).eval(), moved(trained.splits, device)
        members.append(Member(model, splits, trained.problem, config.measure_rows))
    return members


def _run(task: Task, config: Config) -> Trained:
    """Train the run of a cell, or resume it."""
    from ..training import train
    from ..training.runs import read_run_yaml

    folder = Path(task.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=PATIENCE):
        along: dict[str, Any] = {"measures": list(task.along), "measure_every": task.measure_every}
        if (started := read_run_yaml(folder)) is not None:  # records of its epochs cannot be added any more
            along = {name: started["config"][name] for name in along}
        run = train(replace(config, out=str(folder), **along), progress=False)
    return Trained(run.model(), run.data(), run.task, run.records, _meta(run))


def _meta(run: Run) -> dict[str, float]:
    """Size and cost of a trained run."""
    seconds = sum(record.get("seconds") or 0.0 for record in run.records)  # of steps: without evaluation and measures
    meta = {"parameters": float(run.about["parameters"]), "steps": float(run.about["steps"])}
    return meta | {"passes": float(sum(r["passes"] for r in run.records)), "training_seconds": seconds}


def _checkpoint(task: Task, config: Config) -> Trained:
    """Read a checkpoint of the pool."""
    from .._util.checkpoints import load_into, read_checkpoint
    from ..training import open_run
    from ..training.model import model_of
    from ..training.problem import data_of, standard_of, task_of

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
) -> tuple[dict[str, float], dict[str, float], str | None]:
    """Errors and losses of the final weights without augmentation, and their standard errors where they have one.

    Also returns where corrupted rows come from, if there are any. `last` is the record of the last epoch.
    """
    from ..core.process_group import Workers
    from ..data.corrupted_rows import REMADE
    from ..training.evaluate import evaluated, under_corruptions

    parts = {"train": splits.train, "test": splits.test, "validation": splits.validation}
    sets = {part: rows for part, rows in parts.items() if rows is not None}
    scores = {part: evaluated(model, rows, problem, config, Workers()) for part, rows in sets.items()}
    losses = {part: each["loss"] for part, each in scores.items()}
    wrong = {part: 1 - each["accuracy"] for part, each in scores.items() if "accuracy" in each}
    values, errors = targets_of(losses, wrong, {part: len(rows) for part, rows in sets.items()})
    source = None
    if config.corruptions:
        damaged = last if "corrupted" in last else under_corruptions(model, splits.test, problem, config, Workers())
        source = str(damaged.get("corrupted_source", REMADE))  # runs without the entry are older than it
        values["corrupted_error"] = 1 - damaged["corrupted_accuracy"]
        for severity, shares in zip(config.severities, zip(*damaged["corrupted"].values(), strict=True), strict=True):
            values[f"corrupted_error@{severity}"] = 1 - fmean(shares)
    model.eval()
    return values, errors, source


def _shifted_errors(
    model: nn.Module, splits: Splits, problem: Problem, ood: Mapping[str, str]
) -> dict[str, tuple[float, int]]:
    """Errors on test sets under another distribution, each with its number of rows."""
    from ..data import shifted
    from ..ensembles.summary import logits

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


def _versions(device: str | None) -> dict[str, str]:
    """The software, the machine and the day of an outcome."""
    import numpy
    import torch

    from ..training.distributed import device_of

    on = device_of(device)
    processor = torch.cuda.get_device_name(on) if on.type == "cuda" else platform.machine()
    return {
        "device": processor, "date": datetime.now(UTC).date().isoformat(),
        "steppe": __version__, "torch": str(torch.__version__), "numpy": numpy.__version__,
        "python": platform.python_version(), "system": platform.platform(),
    }  # fmt: skip
