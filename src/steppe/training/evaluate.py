"""Evaluation during a run: loss, accuracy, corruptions and flatness, and the record of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .._util.digests import packed_bits
from ..core.draw import permutation, seed_of, seed_torch
from ..core.process_group import Workers
from ..data.corrupted_rows import CorruptedRows, corrupted_rows
from ..data.dataset import Dataset, Splits
from ..data.feed import batches
from ..measures.batches import share
from ..measures.objective import Objective
from ..measures.session import Precision
from .checkpoint import Record
from .config import NOISE, Config
from .distributed import align_
from .model import model_of
from .problem import Task
from .schedule import Position, Timeline
from .state import Sums, TrainState

if TYPE_CHECKING:
    from ..measures.combinators import OnData, Rows
    from ..measures.run import Results

ROWS = 1024  # per batch: large enough to keep a GPU busy
TIMINGS = ("images_per_second", "seconds", "evaluation_seconds")
"""Entries of a record that differ when a run is repeated; all others are a function of the configuration."""
M = 256  # rows per batch of measures: m-sharpness depends on it (A modern look, section 3)


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


def evaluated(
    model: nn.Module, dataset: Dataset, task: Task, config: Config, workers: Workers, rows: bool = False
) -> Record:
    """Evaluate a model on all rows of a data set; workers share them.

    Returns the mean `loss` and, where targets are classes, the `accuracy`; with `rows` also `correct`, one bit per row
    as `unpacked_bits` reads them: errors of comparisons need to know which rows two models get wrong together.
    """
    device = dataset.inputs.device
    sums, correct = Sums(device), torch.zeros(len(dataset), dtype=torch.int32, device=device)
    mine = batches(dataset, ROWS, task.standard, workers.rank, workers.count)
    with evaluating(model):
        for number in range(-(-len(dataset) // (ROWS * workers.count))):
            # a sharded model needs all workers in every forward pass: without rows left, run one row with weight 0
            batch = next(mine, None)
            x, y = batch or (task.standard(dataset.inputs[:1]), dataset.targets[:1])
            with autocast(config, device):
                output = task.call(model, x)
            losses, right = task.loss(output, y), task.loss.correct(output, y)
            sums.add(losses, right, weight=float(batch is not None))
            if rows and batch is not None and right is not None:
                first = ROWS * (number * workers.count + workers.rank)
                correct[first : first + len(y)] = right
    result: Record = {**sums.read(workers)}
    if rows and "accuracy" in result:
        result["correct"] = packed_bits(workers.all_reduce(correct).cpu().numpy())
    return result


def corrupted_test(config: Config, test: Dataset) -> CorruptedRows | None:
    """Return the test rows under the configured corruptions, not read yet; None without corruptions."""
    return corrupted_rows(config.data, config.data_root, test, config.corruptions) if config.corruptions else None


def under_corruptions(model: nn.Module, test: Dataset, task: Task, config: Config, workers: Workers) -> dict[str, Any]:
    """Return accuracies by corruption, one per severity, their mean, and whether the rows are official or remade."""
    corrupted = corrupted_test(config, test)
    if corrupted is None:
        return {}
    accuracies = {
        name: [evaluated(model, corrupted.rows(name, s), task, config, workers)["accuracy"] for s in config.severities]
        for name in corrupted.names
    }
    every = [a for row in accuracies.values() for a in row]
    mean = sum(every) / len(every)
    return {"corrupted_accuracy": mean, "corrupted_source": corrupted.source, "corrupted": accuracies}


def objective_of(
    model: nn.Module,
    task: Task,
    dataset: Dataset,
    rows: int | None,
    workers: Workers | None = None,
    m: int = M,
    precision: Precision = "float32",
) -> Objective:
    """Return the loss without label smoothing on a random subset of the rows, which does not depend on the seed."""
    dataset = some_rows(dataset, rows)
    data = (task.standard(dataset.inputs), dataset.targets)
    group = workers.group if workers is not None else None
    parts: Any = data if group is None else share(data, group, m)
    own_m = m if group is None else None
    return Objective(model, task.loss, parts, forward=task.forward, m=own_m, group=group, precision=precision)


def some_rows(dataset: Dataset, count: int | None) -> Dataset:
    """Return a fixed random subset, in the stored order: files may be sorted by class."""
    if count is None or count >= len(dataset):
        return dataset
    return dataset.rows(permutation(len(dataset), 0)[:count].sort().values.to(dataset.inputs.device))


def measured_rows(splits: Splits, config: Config, rows: Rows, count: int | None) -> Dataset:
    """Return up to `count` rows of a kind to measure on, on the device of the training rows.

    Corrupted rows are drawn from the test rows under all configured corruptions and severities together. Augmented rows
    are those training rows that are measured without augmentation too, under the configured augmentations, drawn once.
    """
    device = splits.train.inputs.device
    if rows == "corrupted":
        corrupted = corrupted_test(config, splits.test)
        if corrupted is None:
            raise ValueError("corrupted rows need `corruptions` in the configuration of the run: it has none")
        kinds = [(name, severity) for name in corrupted.names for severity in config.severities]
        rows_each = len(splits.test)
        chosen = permutation(len(kinds) * rows_each, 0)[:count].sort().values.to(device)
        parts = [
            corrupted.rows(*kind).rows(chosen[chosen // rows_each == number] - number * rows_each)
            for number, kind in enumerate(kinds)
        ]
        inputs, targets = (torch.cat([getattr(part, x) for part in parts]) for x in ("inputs", "targets"))
        return replace(splits.test, inputs=inputs, targets=targets).to(device)
    if rows == "augmented":
        if not config.augment:
            raise ValueError("augmented rows need `augment` in the configuration of the run: it has none")
        from ..data.augment import augmentation

        plain = some_rows(splits.train, count)
        change = augmentation(config.augment, len(plain.classes) or None)
        draws = torch.Generator().manual_seed(0)
        # on the CPU, so that draws do not depend on the device; mixup has one weight per batch
        changed = [change(x, y, draws) for x, y in batches(plain.to("cpu"), M)]
        inputs, targets = (torch.cat(column) for column in zip(*changed, strict=True))
        return replace(plain, inputs=inputs, targets=targets).to(device)
    dataset: Dataset | None = getattr(splits, rows)
    if dataset is None:
        raise ValueError(f"{rows} rows need a part of that name: set `{rows}` to a fraction of the training rows")
    return some_rows(dataset, count)


def on_data(
    model: nn.Module, task: Task, splits: Splits, config: Config, workers: Workers | None = None
) -> Callable[[OnData], Objective]:
    """Return a function that makes the objective of measures on other data than the usual training rows of a run."""

    def objective(data: OnData) -> Objective:
        rows = measured_rows(splits, config, data.rows or "train", data.count or config.measure_rows)
        return objective_of(model, task, rows, None, workers, data.m or M, data.precision or "float32")

    return objective


def measured(
    objective: Objective, measures: Sequence[str], seed: int, on: Callable[[OnData], Objective] | None = None
) -> Results:
    """Return all measures; raise KeyboardInterrupt if one was interrupted, as half a measurement is no result."""
    from ..measures.registry import resolve_measures  # late: most runs have no measures, and these import scipy
    from ..measures.run import STOPPED, measure_objective

    results = measure_objective(objective, resolve_measures(measures), seed, progress=False, on=on)
    if not all(e.complete for e in results.values()) or STOPPED in results.failures.values():
        raise KeyboardInterrupt
    return results


def flatness(
    objective: Objective, measures: Sequence[str], seed: int, on: Callable[[OnData], Objective] | None = None
) -> dict[str, Any]:
    """Return estimates with their errors as a record holds them, and the reasons of those that failed."""
    results = measured(objective, measures, seed, on)
    entries: dict[str, Any] = {}
    for name, e in results.estimates.items():
        entries[name] = {"value": e.value, "stderr": e.stderr, "n": e.n, "kind": e.kind}
        entries[name] |= {"note": e.note} if e.note else {}
    return entries | {name: {"failed": why} for name, why in results.failures.items()}


def record_of(
    state: TrainState, position: Position, timeline: Timeline, config: Config, splits: Splits, task: Task
) -> Record:
    """Evaluate at the end of an epoch and return its record; every worker takes part."""
    number, workers = position.epoch + 1, state.workers
    last = number == timeline.epochs
    group = state.opt.param_groups[0]
    settings = {k: float(group[k]) for k in ("lr", "rho") if isinstance(group.get(k), (int, float, Tensor))}
    trained = {f"train_{k}": v for k, v in state.sums.read(workers).items()}
    rows = timeline.length(position.epoch) * config.batch_size
    record: Record = {"epoch": number, "step": timeline.taken(position), **settings, **trained, "passes": state.passes}
    record |= {"skipped": state.skipped} if config.on_nonfinite == "skip" else {}
    record |= {"steps": state.marked()} if config.log_every else {}
    start = perf_counter()
    align_(workers, state.module)
    if last or number % config.evaluate_every == 0:
        record |= _evaluations(state, config, splits, task, last)
    if config.measures and (last or (config.measure_every and number % config.measure_every == 0)):
        record["measures"] = _measures(state, config, splits, task)
    if last:
        record |= under_corruptions(state.module, splits.test, task, config, workers)
    state.reshard()
    speed = rows / state.seconds if state.seconds else 0.0
    evaluation = perf_counter() - start
    return record | {"seconds": state.seconds, "images_per_second": speed, "evaluation_seconds": evaluation}


def _evaluations(state: TrainState, config: Config, splits: Splits, task: Task, last: bool) -> Record:
    """Evaluate the weights and their averages on test and validation rows; at the end row by row."""

    def evaluation(prefix: str) -> Record:
        parts = {"validation": splits.validation, "test": splits.test}
        return {
            f"{prefix}{part}_{k}": v
            for part, rows in parts.items()
            if rows is not None
            for k, v in evaluated(state.module, rows, task, config, state.workers, rows=last).items()
        }

    record = evaluation("")
    for name, average in state.averages.items():
        if not average.n:
            continue
        state.reshard()
        with average.swapped_in(state.tensors):
            if not average.every_step:
                _estimate_statistics(state, config, splits, task)
                average.update_buffers(state.buffers())
            record |= evaluation(f"{name}_")
            state.reshard()
    return record


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
    on = on_data(model, task, splits, config, state.workers)
    return flatness(objective, config.measures, config.seed, on)
