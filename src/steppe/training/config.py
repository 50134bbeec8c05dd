"""Everything that a training run follows from, as one value without torch in it: commands read it before torch is here.

A value of None means: as the method, the model or the machine has it by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from typing import Any, Literal, get_type_hints

from .._util.types import fits, words


@dataclass(frozen=True)
class Config:
    """One training run: data, model, method, base optimizer, schedule, what is recorded, and where."""

    data: str = "digits"
    """a data set by name, `folder:PATH`, or `npz:PATH`"""
    data_root: str = "data"
    """the folder under which data sets lie"""
    model: str = "mlp"
    """a model by name, or `package.module:factory`"""
    model_options: dict[str, Any] = field(default_factory=dict)
    """what else the model is built with, such as {"width": 16}"""
    method: str = "sam"
    """a method by name: `steppe methods` lists them"""
    rho: float | None = None
    """the method's radius; by default the method's own"""
    method_options: dict[str, Any] = field(default_factory=dict)
    """what else the method takes, such as {"n": 2}"""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """the base optimizer that applies the method's gradient"""
    lr: float = 0.1
    """the highest learning rate of the schedule"""
    momentum: float = 0.9
    """SGD's momentum, Adam's beta1"""
    nesterov: bool = False
    """SGD with Nesterov's momentum"""
    weight_decay: float = 5e-4
    """of the base optimizer"""

    epochs: int = 30
    """passes over the training rows"""
    steps: int | None = None
    """stop after so many steps; instead of epochs"""
    batch_size: int = 128
    """rows a step, over all processes together"""
    schedule: Literal["constant", "cosine", "multistep", "linear"] = "cosine"
    """how the learning rate falls, step by step; sa-sam and sa-sgd set it themselves, from lr on"""
    milestones: list[float] = field(default_factory=lambda: [0.5, 0.75])
    """where multistep falls, as fractions of the run"""
    decay: float = 0.1
    """the factor at each milestone of multistep"""
    warmup: float = 0.0
    """the fraction of the run in which the learning rate grows linearly"""

    fraction: float = 1.0
    """train on the first part of the training rows"""
    per_class: int | None = None
    """train on the first so many rows of each class"""
    label_noise: float = 0.0
    """the fraction of training labels that are made wrong, symmetrically, those set aside included"""
    validation: float = 0.0
    """the fraction of training rows that are kept for validation"""
    held_out: float = 0.0
    """the fraction of training rows that only a method's held-out passes see"""
    augment: list[str] = field(default_factory=list)
    """what is done to training batches: crop, flip, mixup, randaugment"""
    label_smoothing: float = 0.0
    """of the cross-entropy"""
    sharp_rows: str | None = None
    """an .npy file with the numbers of the training rows that the method is for, the others being plain steps as in
    SharpBalance; `exchanged@10`: as an ensemble's members tell one another after epoch 10; sharpbalance by itself takes
    a random half"""
    clip: float | None = None
    """the norm to which the method's gradient is clipped"""
    ema: float | None = None
    """the decay of an exponential average of the weights and BatchNorm's statistics, evaluated beside them"""
    swa: float | None = None
    """the fraction of the run after which weights are averaged evenly, evaluated beside them"""
    swa_every: Literal["epoch", "step"] = "epoch"
    """which weights that average counts: those at the end of every epoch, or of every step"""

    precision: Literal["float32", "bf16"] = "float32"
    """of the forward and backward passes; weights stay float32"""
    on_nonfinite: Literal["raise", "skip", "late"] = "raise"
    """a loss or gradient that is not finite ends the run, or skips the step, or is looked for at checkpoints only, so
    that no step waits for a GPU"""
    evaluate_every: int = 1
    """epochs between evaluations"""
    corruptions: list[str] = field(default_factory=list)
    """corruptions under which the test rows are evaluated at the end; `all` for all 19"""
    severities: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    """of the corruptions"""
    measures: list[str] = field(default_factory=list)
    """measures of flatness on training rows, at the end and every `measure_every` epochs"""
    measure_every: int | None = None
    """epochs between measurements; by default only at the end"""
    measure_rows: int = 1024
    """training rows that measures look at, without augmentation"""

    seed: int = 0
    """of the initial weights, the order of the rows and everything random"""
    data_seed: int | None = None
    """of wrong labels and rows set aside, so that runs may differ and their data not; by default the seed"""
    device: str | None = None
    """by default a GPU where there is one"""
    threads: int | None = None
    """CPU threads of torch; bitwise repetition needs the same number. A run goes on with those that it began with"""
    capture: bool = True
    """on a GPU, take steps as recorded CUDA graphs, where they can be"""
    fsdp: bool = False
    """shard the model over the processes instead of copying it"""
    checkpoint_every: float = 60.0
    """seconds between checkpoints within an epoch; every epoch ends with one"""
    loggers: list[str] = field(default_factory=list)
    """where records also go: tensorboard, csv, or `package.module:factory`"""
    out: str | None = None
    """the run's folder; by default runs/ and a name from data, model, method and seed"""

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            if not fits(getattr(self, name), kind):
                raise ValueError(f"{name} is {getattr(self, name)!r}, and has to be {words(kind)}")
        for wanted, holds, names in _RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"{name} is {value!r}, and has to be {wanted}")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise ValueError("nesterov is a way of SGD with momentum: set optimizer to sgd and momentum above 0")


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Config)


# what values have to be, in words and as a test, and the fields of which it holds; None passes
_RANGES: list[tuple[str, Callable[[Any], bool], tuple[str, ...]]] = [
    ("1 or more", lambda v: v >= 1, ("epochs", "steps", "batch_size", "per_class", "evaluate_every", "measure_every")),
    ("1 or more", lambda v: v >= 1, ("measure_rows", "threads")),
    ("0 or more", lambda v: v >= 0, ("checkpoint_every",)),
    ("0 or more, and finite", lambda v: v >= 0 and isfinite(v), ("lr", "weight_decay", "rho", "decay")),
    ("more than 0", lambda v: v > 0, ("clip",)),
    ("from 0 to 1", lambda v: 0 <= v <= 1, ("warmup", "label_noise", "ema", "swa")),
    ("0 or more and below 1", lambda v: 0 <= v < 1, ("momentum", "validation", "held_out", "label_smoothing")),
    ("more than 0 and at most 1", lambda v: 0 < v <= 1, ("fraction",)),
    ("a list of numbers from 0 to 1", lambda v: all(0 <= x <= 1 for x in v), ("milestones",)),
    ("a list of numbers from 1 to 5", lambda v: all(x in range(1, 6) for x in v), ("severities",)),
]
