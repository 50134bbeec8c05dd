"""What is looked at when an epoch is over, and the record that it makes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from torch.optim.swa_utils import update_bn

from ..core.draw import seed_of, seed_torch
from ..data.dataset import Splits
from ..data.feed import batches
from .config import Config
from .distributed import align_
from .evaluate import autocast, evaluated, under_corruptions
from .flatness import flatness, objective_of
from .position import Course, Position
from .problem import NOISE, Task, model_of
from .records import Record
from .trainee import Trainee


def record_of(
    trainee: Trainee, position: Position, course: Course, config: Config, splits: Splits, task: Task
) -> Record:
    """The record of an epoch whose steps are all taken; every worker takes part."""
    number, workers = position.epoch + 1, trainee.workers
    last = number == course.epochs
    group = trainee.opt.param_groups[0]
    settings = {k: float(group[k]) for k in ("lr", "rho") if isinstance(group.get(k), (int, float))}
    trained = {f"train_{k}": v for k, v in trainee.sums.read(workers).items()}
    rows = course.length(position.epoch) * config.batch_size
    record: Record = {"epoch": number, "step": course.taken(position), **settings, **trained, "passes": trainee.passes}
    record |= {"skipped": trainee.skipped} if config.on_nonfinite == "skip" else {}
    start = perf_counter()
    align_(workers, trainee.bare)
    if last or number % config.evaluate_every == 0:
        record |= _evaluations(trainee, config, splits, task)
    if config.measures and (last or (config.measure_every and number % config.measure_every == 0)):
        record["measures"] = _measures(trainee, config, splits, task)
    if last:
        record |= under_corruptions(trainee.bare, splits.test, task, config, workers)
    trainee.let_go()
    speed = rows / trainee.seconds if trainee.seconds else 0.0
    evaluation = perf_counter() - start
    return record | {"seconds": trainee.seconds, "images_per_second": speed, "evaluation_seconds": evaluation}


def _evaluations(trainee: Trainee, config: Config, splits: Splits, task: Task) -> Record:
    """Of the weights and of their averages, on test and validation rows."""
    found = _evaluation(trainee, config, splits, task, "")
    for name, average in trainee.averages.items():
        if not average.n:
            continue
        trainee.let_go()
        with average.standing_in(trainee.tensors):
            if not average.every_step:
                _estimate_statistics(trainee, config, splits, task)
                average.learn(trainee.buffers())
            found |= _evaluation(trainee, config, splits, task, f"{name}_")
            trainee.let_go()
    return found


def _evaluation(trainee: Trainee, config: Config, splits: Splits, task: Task, prefix: str) -> Record:
    parts = {"validation": splits.validation, "test": splits.test}
    return {
        f"{prefix}{part}_{k}": v
        for part, rows in parts.items()
        if rows is not None
        for k, v in evaluated(trainee.bare, rows, task, config, trainee.workers).items()
    }


def _estimate_statistics(trainee: Trainee, config: Config, splits: Splits, task: Task) -> None:
    """BatchNorm's statistics of the weights that stand in, over the training rows."""
    seed_torch(seed_of(config.seed, NOISE))  # there may be dropout before a BatchNorm
    with autocast(config, splits.train.inputs.device):
        update_bn(batches(splits.train, config.batch_size, task.standard), trainee.bare)


def _measures(trainee: Trainee, config: Config, splits: Splits, task: Task) -> dict[str, Any]:
    model = trainee.bare
    if config.fsdp:  # measures want a model that is whole
        model = model_of(config, task.shape, task.outputs).to(splits.train.inputs.device)
        trainee.let_go()
        model.load_state_dict(trainee.weights())
    objective = objective_of(model, task, splits.train, config.measure_rows, trainee.workers)
    return flatness(objective, config.measures, config.seed)
