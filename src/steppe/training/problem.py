"""What a run solves, from its configuration: data, task (shapes, standardisation, loss) and optimizer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..data.dataset import Splits
from ..data.pixels import Standard
from ..data.registry import absolute, declared, kept, load
from ..measures.batches import logits_of
from ..measures.functional import unwrap
from ..methods.registry import METHODS, method
from ..methods.sharpbalance import OnSomeRows, SharpBalance
from ..optim.engine import SharpnessAware
from .config import Config
from .model import lr_factors
from .schedule import Timeline


class Loss(Protocol):
    """A loss per row, and whether a row is classified correctly."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return one number per row."""
        ...

    def correct(self, output: Tensor, target: Tensor) -> Tensor | None:
        """Return one bool per row, or None where targets are numbers."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """For class numbers, and for class probabilities such as mixup's."""

    smoothing: float = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        # in float32 at least: exponentials of half-precision numbers are too coarse
        wide = output if output.dtype == torch.float64 else output.float()
        target = target.to(wide.dtype) if target.is_floating_point() else target
        return functional.cross_entropy(wide, target, reduction="none", label_smoothing=self.smoothing)

    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        return output.argmax(1) == (target.argmax(1) if target.is_floating_point() else target)


@dataclass(frozen=True)
class SquaredError:
    """The mean over the outputs of a row of (output - target)^2."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        rows = len(target)
        output, target = output.reshape(rows, -1), target.reshape(rows, -1)
        if output.shape != target.shape:
            raise ValueError(
                f"the model has {output.shape[1]} outputs per row and the targets have {target.shape[1]}: "
                "use a model with as many outputs"
            )
        wide = output if output.dtype == torch.float64 else output.float()
        return (wide - target).square().mean(1)

    def correct(self, output: Tensor, target: Tensor) -> None:
        return None


@dataclass(frozen=True)
class Task:
    """Shape of an input, number of outputs, standardisation, loss, and the names of a model's inputs."""

    shape: tuple[int, ...]
    outputs: int
    standard: Standard
    loss: Loss  # without label smoothing, for evaluation and measures
    fields: tuple[str, ...] = ()  # of a dictionary, such as input_ids and attention_mask; empty for one input

    def call(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Return the model's output for a batch: its logits where it returns several things, as in Transformers."""
        named = dict(zip(self.fields, inputs.unbind(1), strict=True)) if self.fields else None
        output = model(inputs) if named is None else model(**named)
        return output if isinstance(output, Tensor) else logits_of(output)

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the output and the target of a batch, as an objective takes them."""
        return self.call(model, batch[0]), batch[1]


ROWS = ("data", "labels", "fraction", "per_class", "label_noise", "validation", "held_out")
"""The settings, beside the folder of the data sets and a seed, from which the rows of a run follow."""


def data_of(config: Config) -> Splits:
    """Return the rows of a run; in a block of `loaded_once`, runs with the same settings and seed share them."""
    seed = config.seed if config.data_seed is None else config.data_seed
    drawn = config.label_noise or config.validation or config.held_out
    key = (absolute(config.data_root), *(getattr(config, name) for name in ROWS), seed if drawn else None)
    return kept("run", key, lambda: _rows_of(config, seed))


def _rows_of(config: Config, seed: int) -> Splits:
    """Load the rows. Label noise comes first, so rows set aside are as noisy as those trained on."""
    from ..data import subsets

    splits = load(config.data, config.data_root)
    if config.labels is not None:
        from ..data.small_images import relabelled

        splits = replace(splits, train=relabelled(splits.train, config.data_root, config.labels))
    train = splits.train if config.fraction == 1 else subsets.first(splits.train, config.fraction)
    train = train if config.per_class is None else subsets.per_class(train, config.per_class)
    if config.label_noise:
        train = subsets.symmetric_noise(train, config.label_noise, seed)
    return subsets.set_aside(replace(splits, train=train), config.validation, config.held_out, seed)


def moved(splits: Splits, device: torch.device) -> Splits:
    """Return the splits on a device."""
    return Splits(**{name: rows.to(device) for name, rows in splits.parts.items()})


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
            f"normalise is {words!r}, which is for {kinds[bool(standard.mean)]}, and inputs of {config.data} are "
            f"{kinds[splits.train.is_images]}: numbers are used as they are, with `none`"
        )
    return standard


def task_of(splits: Splits, standard: Standard | None = None) -> Task:
    """Return the task of these rows; by default the training rows determine the standardisation."""
    train = splits.train
    outputs = len(train.classes) or prod(train.targets.shape[1:])
    loss: Loss = CrossEntropy() if train.classes else SquaredError()
    shape = tuple(train.inputs.shape[2 if train.fields else 1 :])
    return Task(shape, outputs, Standard.of(train) if standard is None else standard, loss, train.fields)


def trained_loss(config: Config, task: Task) -> Loss:
    """Return the task's loss with the configured label smoothing."""
    if isinstance(task.loss, CrossEntropy):
        return CrossEntropy(config.label_smoothing)
    if config.label_smoothing:
        raise ValueError("label_smoothing needs classes as targets, and these are numbers: leave it at 0")
    return task.loss


def options_of(config: Config, timeline: Timeline) -> dict[str, Any]:
    """Return the options of the method, including those that follow from the run."""
    run = {"per_epoch": timeline.per_epoch, "steps": timeline.steps, "batch_size": config.batch_size,
           "held_out": bool(config.held_out)}  # fmt: skip
    return {**METHODS[config.method].in_run(**run), **config.options}


FACTOR = "lr_factor"  # option of a parameter group: the learning rate relative to the schedule's


def optimizer_of(config: Config, model: nn.Module, timeline: Timeline, task: Task) -> SharpnessAware:
    """Build the method around its base optimizer."""
    if METHODS[config.method].sets_lr and config.momentum:
        warnings.warn(
            f"{config.method} with momentum {config.momentum:g} is not the paper's algorithm, which sets the step size "
            "for plain gradient steps: sa-sam often does not train with it. Leave momentum out",
            stacklevel=2,
        )
    # all trained parameters as one group, or one group per factor of the learning rate, the largest first
    module = unwrap(model)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    groups: list[Any] = list(trained.values())
    if config.lr_factors:
        factors = lr_factors(module, config, task.shape, task.outputs)
        values = sorted({factors[name] for name in trained}, reverse=True)
        groups = [{"params": [p for name, p in trained.items() if factors[name] == f], FACTOR: f} for f in values]
    lr, momentum, decay = config.lr, config.momentum, config.weight_decay
    base: Optimizer
    if config.optimizer == "sgd":
        base = SGD(groups, lr, momentum, weight_decay=decay, nesterov=config.nesterov)
    else:  # beta2: torch's default
        base = (Adam if config.optimizer == "adam" else AdamW)(groups, lr, (momentum, 0.999), weight_decay=decay)
    chosen = method(config.method, **options_of(config, timeline))
    if config.sharp_rows is not None:
        chosen = OnSomeRows(chosen.method if isinstance(chosen, SharpBalance) else chosen)
    on_nonfinite = None if config.on_nonfinite == "late" else config.on_nonfinite
    return SharpnessAware(base, chosen, model=model, seed=config.seed, on_nonfinite=on_nonfinite)
