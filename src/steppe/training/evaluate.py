"""Evaluation during a run: loss, accuracy, corruptions and flatness, and the record of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.draw import permutation, seed_of, seed_torch
from ..core.process_group import Workers
from ..data.corrupted_rows import CorruptedRows, corrupted_rows
from ..data.dataset import Dataset, Splits
from ..data.feed import batches
from ..measures.batches import share
from ..measures.objective import Objective
from ..measures.registry import resolve_measures
from ..measures.run import measure_objective
from .config import Config
from .distributed import align_
from .losses import Sums
from .problem import NOISE, Task, model_of
from .records import Record
from .schedule import Course, Position
from .train_state import TrainState

ROWS = 1024  # per batch: large enough to keep a GPU busy
M = 256  # rows per batch of measures: m-sharpness depends on it (A modern look, section 3)
STOPPED = "not measured: stopped"  # the reason that `measured` gives for measures after a Ctrl-C


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode without gradients, and each module's own mode afterwards: frozen layers stay in it."""
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for m in training:
            m.training = True


def autocast(config: Config, device: torch.device) -> Any:
    """Return the context of forward passes in the configured precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def evaluated(model: nn.Module, dataset: Dataset, task: Task, config: Config, workers: Workers) -> dict[str, float]:
    """Return mean loss and, where targets are classes, accuracy; workers share the rows."""
    device = dataset.inputs.device
    sums = Sums(device)
    mine = batches(dataset, ROWS, task.standard, workers.rank, workers.count)
    with evaluating(model):
        for _ in range(-(-len(dataset) // (ROWS * workers.count))):
            # a sharded model needs all workers in every forward pass: without rows left, run one row with weight 0
            batch = next(mine, None)
            x, y = batch or (task.standard(dataset.inputs[:1]), dataset.targets[:1])
            with autocast(config, device):
                output = model(x)
            sums.add(task.loss(output, y), output, y, task.loss, weight=float(batch is not None))
    return sums.read(workers)


def corrupted_test(config: Config, test: Dataset) -> CorruptedRows | None:
    """Return the test rows under the configured corruptions, not read yet; None without corruptions."""
    return corrupted_rows(config.data, config.data_root, test, config.corruptions) if config.corruptions else None


def under_corruptions(model: nn.Module, test: Dataset, task: Task, config: Config, workers: Workers) -> dict[str, Any]:
    """Return accuracies by corruption, one per severity, their mean, and whether the rows are official or remade."""
    corrupted = corrupted_test(config, test)
    if corrupted is None:
        return {}
    accuracies: dict[str, list[float]] = {}
    for name in corrupted.names:
        for severity in config.severities:
            scores = evaluated(model, corrupted.rows(name, severity), task, config, workers)
            accuracies.setdefault(name, []).append(scores["accuracy"])
    every = [a for row in accuracies.values() for a in row]
    mean = sum(every) / len(every)
    return {"corrupted_accuracy": mean, "corrupted_source": corrupted.source, "corrupted": accuracies}


def objective_of(
    model: nn.Module, task: Task, dataset: Dataset, rows: int | None, workers: Workers | None = None
) -> Objective:
    """Return the loss without label smoothing on rows without augmentation; the rows do not depend on the seed."""
    if rows is not None and rows < len(dataset):
        # a random subset: files may be sorted by class
        dataset = dataset.rows(permutation(len(dataset), 0)[:rows].sort().values.to(dataset.inputs.device))
    data = (task.standard(dataset.inputs), dataset.targets)
    group = workers.group if workers is not None else None
    parts: Any = data if group is None else share(data, group, M)
    return Objective(model, task.loss, parts, m=M if group is None else None, group=group)


def flatness(objective: Objective, measures: Sequence[str], seed: int) -> dict[str, Any]:
    """Return estimates with their errors as a record holds them, and the reasons of those that failed."""
    results = measure_objective(objective, resolve_measures(measures), seed, progress=False)
    if not all(e.complete for e in results.values()) or STOPPED in results.failures.values():
        raise KeyboardInterrupt  # a record with half a measurement would differ from that of an undisturbed run
    entries: dict[str, Any] = {}
    for name, e in results.estimates.items():
        entries[name] = {"value": e.value, "stderr": e.stderr, "n": e.n, "kind": e.kind}
        entries[name] |= {"note": e.note} if e.note else {}
    return entries | {name: {"failed": why} for name, why in results.failures.items()}


def record_of(
    state: TrainState, position: Position, course: Course, config: Config, splits: Splits, task: Task
) -> Record:
    """Evaluate at the end of an epoch and return its record; every worker takes part."""
    number, workers = position.epoch + 1, state.workers
    last = number == course.epochs
    group = state.opt.param_groups[0]
    settings = {k: float(group[k]) for k in ("lr", "rho") if isinstance(group.get(k), (int, float))}
    trained = {f"train_{k}": v for k, v in state.sums.read(workers).items()}
    rows = course.length(position.epoch) * config.batch_size
    record: Record = {"epoch": number, "step": course.taken(position), **settings, **trained, "passes": state.passes}
    record |= {"skipped": state.skipped} if config.on_nonfinite == "skip" else {}
    start = perf_counter()
    align_(workers, state.module)
    if last or number % config.evaluate_every == 0:
        record |= _evaluations(state, config, splits, task)
    if config.measures and (last or (config.measure_every and number % config.measure_every == 0)):
        record["measures"] = _measures(state, config, splits, task)
    if last:
        record |= under_corruptions(state.module, splits.test, task, config, workers)
    state.reshard()
    speed = rows / state.seconds if state.seconds else 0.0
    evaluation = perf_counter() - start
    return record | {"seconds": state.seconds, "images_per_second": speed, "evaluation_seconds": evaluation}


def _evaluations(state: TrainState, config: Config, splits: Splits, task: Task) -> Record:
    """Evaluate the weights and their averages on test and validation rows."""
    record = _evaluation(state, config, splits, task, "")
    for name, average in state.averages.items():
        if not average.n:
            continue
        state.reshard()
        with average.swapped_in(state.tensors):
            if not average.every_step:
                _estimate_statistics(state, config, splits, task)
                average.update_buffers(state.buffers())
            record |= _evaluation(state, config, splits, task, f"{name}_")
            state.reshard()
    return record


def _evaluation(state: TrainState, config: Config, splits: Splits, task: Task, prefix: str) -> Record:
    parts = {"validation": splits.validation, "test": splits.test}
    return {
        f"{prefix}{part}_{k}": v
        for part, rows in parts.items()
        if rows is not None
        for k, v in evaluated(state.module, rows, task, config, state.workers).items()
    }


def _estimate_statistics(state: TrainState, config: Config, splits: Splits, task: Task) -> None:
    """Estimate BatchNorm's statistics of the current weights over the training rows."""
    seed_torch(seed_of(config.seed, NOISE))  # there may be dropout before a BatchNorm
    layers = [m for m in state.module.modules() if isinstance(m, _BatchNorm) and m.training]  # not frozen ones
    momenta = [m.momentum for m in layers]
    for m in layers:
        m.reset_running_stats()
        m.momentum = None  # the mean over all batches
    with torch.no_grad(), autocast(config, splits.train.inputs.device):
        for x, _ in batches(splits.train, config.batch_size, task.standard) if layers else ():
            state.module(x)
    for m, momentum in zip(layers, momenta, strict=True):
        m.momentum = momentum


def _measures(state: TrainState, config: Config, splits: Splits, task: Task) -> dict[str, Any]:
    model = state.module
    if config.fsdp:  # measures need an unsharded model
        model = model_of(config, task.shape, task.outputs).to(splits.train.inputs.device)
        state.reshard()
        model.load_state_dict(state.weights())
    objective = objective_of(model, task, splits.train, config.measure_rows, state.workers)
    return flatness(objective, config.measures, config.seed)
