"""From a configuration to its data, its task (shapes, standardisation, loss) and its model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import nn

from ..core.draw import seed_of, seed_torch
from ..data.dataset import Splits
from ..data.pixels import Standard
from ..data.registry import declared, load
from .config import Config
from .losses import CrossEntropy, Loss, SquaredError

WEIGHTS, HELD_OUT, SHARP, NOISE = range(4)  # uses of a run's seed beside the order of rows: independent streams


@dataclass(frozen=True)
class Task:
    """Shape of an input, number of outputs, standardisation and loss."""

    shape: tuple[int, ...]
    outputs: int
    standard: Standard
    loss: Loss  # without label smoothing, for evaluation and measures


def data_of(config: Config) -> Splits:
    """Load the rows of a run. Label noise comes first, so rows set aside are as noisy as those trained on."""
    from ..data import label_noise, subsets

    splits = load(config.data, config.data_root)
    train = splits.train if config.fraction == 1 else subsets.first(splits.train, config.fraction)
    train = train if config.per_class is None else subsets.per_class(train, config.per_class)
    seed = config.seed if config.data_seed is None else config.data_seed
    if config.label_noise:
        train = label_noise.symmetric(train, config.label_noise, seed)
    return subsets.set_aside(replace(splits, train=train), config.validation, config.held_out, seed)


def moved(splits: Splits, device: torch.device) -> Splits:
    """Return the splits on a device."""
    return Splits(**{name: part.to(device) for name, part in vars(splits).items() if part is not None})


def standard_of(words: str, config: Config, splits: Splits) -> Standard:
    """Return the standardisation that the user declares for a checkpoint, to evaluate it on the rows of `config`."""
    numbers, rows = declared(words), splits.train
    if numbers is None:
        rows = rows if words == config.data else data_of(replace(config, data=words)).train
        standard = Standard.of(rows)
    else:
        standard = Standard(*numbers)
    if rows.is_images != splits.train.is_images or (standard.mean and not rows.is_images):
        kinds = ["numbers", "images"]
        raise ValueError(
            f"standardise is {words!r}, which is for {kinds[bool(standard.mean)]}, and inputs of {config.data} are "
            f"{kinds[splits.train.is_images]}: numbers are used as they are, with `none`"
        )
    return standard


def task_of(splits: Splits, standard: Standard | None = None) -> Task:
    """Return the task of these rows; by default the training rows determine the standardisation."""
    train = splits.train
    outputs = len(train.classes) or prod(train.targets.shape[1:])
    loss: Loss = CrossEntropy() if train.classes else SquaredError()
    return Task(tuple(train.inputs.shape[1:]), outputs, Standard.of(train) if standard is None else standard, loss)


def trained_loss(config: Config, task: Task) -> Loss:
    """Return the task's loss with the configured label smoothing."""
    if isinstance(task.loss, CrossEntropy):
        return CrossEntropy(config.label_smoothing)
    if config.label_smoothing:
        raise ValueError("label_smoothing needs classes as targets, and these are numbers: leave it at 0")
    return task.loss


def model_of(config: Config, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build the model; the seed determines its initial weights."""
    from ..nn.registry import build as build_model

    with torch.random.fork_rng(devices=[]):
        seed_torch(seed_of(config.seed, WEIGHTS))
        return build_model(config.model, shape, outputs, **config.model_options)


def fingerprint(splits: Splits) -> str:
    """Return a digest that changes if any row does."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (splits.train, splits.test, splits.validation, splits.held_out):
        for t in (part.inputs, part.targets) if part is not None else ():
            digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
            digest.update(t.cpu().contiguous().numpy().data)
    return digest.hexdigest()
