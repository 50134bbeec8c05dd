"""The full configuration of a training run, and its checks before anything is read or built.

This module does not import torch: commands read it before torch. None means the default of the method, the model or the
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from .._util.names import unknown
from ..core.fields import BelowOne, Count, Fraction, Ge, Gt, Inf, Le, NonNegative, Positive, check_fields
from ..methods.facts import run_settings, sets_lr

INITIAL, HELD_OUT, SHARP, NOISE = range(4)  # uses of a run's seed beside the order of rows: independent streams
Weights = Literal["last", "ema", "swa"]  # the last weights of a run, or an average along it
BY_METHOD: Any = None  # replaced in Config.__post_init__
USUAL = {"lr": 0.1, "momentum": 0.9}


@dataclass(frozen=True)
class Config:
    """One training run: data, model, method, base optimizer, schedule, evaluation and output.

    Each field has its description below it, which `steppe train --help` shows too.

    Examples
    --------
    >>> config = steppe.training.Config(data="digits", model="mlp", method="sam", rho=0.1, epochs=2)
    >>> config.lr, config.schedule, config.batch_size  # defaults
    (0.1, 'cosine', 128)
    >>> steppe.training.Config(epochs=0)
    Traceback (most recent call last):
    ValueError: epochs is 0, and has to be a whole number, 1 or more

    """

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {  # of the help page; the other fields are first on it
        "data": (
            "data_root", "fraction", "per_class", "labels", "label_noise", "validation", "held_out", "augment",
            "data_seed",
        ),
        "model": ("model_options", "init", "freeze", "prune", "prune_at"),
        "method and optimizer": (
            "method_options", "sharp_rows", "lr_factors", "momentum", "nesterov", "weight_decay", "clip",
            "label_smoothing", "on_nonfinite",
        ),
        "schedule and averages": ("steps", "schedule", "milestones", "decay", "warmup", "ema", "swa", "swa_every"),
        "evaluation": ("evaluate_every", "corruptions", "severities", "measures", "measure_every", "measure_rows"),
        "speed, memory and files": (
            "precision", "threads", "capture", "compile", "channels_last", "fsdp", "checkpoint_every", "log_every",
            "loggers",
        ),
    }  # fmt: skip
    data: str = "digits"
    """data set by name, `folder:PATH`, or `npz:PATH`; `flowers102@64` for pictures of 64 x 64"""
    data_root: str = "data"
    """folder of the data sets"""
    model: str = "mlp"
    """model by name, or `package.module:factory`"""
    model_options: dict[str, Any] = field(default_factory=dict)
    """options of the model, such as {"width": 16}"""
    init: str | None = None
    """weights to start from: a run's folder, or a checkpoint with nothing but weights; a head for another number of
    classes is replaced"""
    freeze: list[str] = field(default_factory=list)
    """parameters that are not trained: backbone (all but the last layer), head, or patterns such as `layer1.*`"""
    method: str = "sam"
    """method by name: `steppe methods` lists them"""
    rho: NonNegative | None = None
    """radius of the method; defaults to the method's own"""
    method_options: dict[str, Any] = field(default_factory=dict)
    """other options of the method, such as {"n": 2}"""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """base optimizer, which applies the method's gradient"""
    lr: NonNegative = BY_METHOD
    """highest learning rate of the schedule; defaults to 0.1 (with bsam 0.5; with sa-sam and sa-sgd, the first
    step size, 0.001)"""
    lr_factors: dict[str, Positive] = field(default_factory=dict)
    """factors of the learning rate for some parameters, named as in freeze, such as {"backbone": 0.1}"""
    momentum: BelowOne = BY_METHOD
    """SGD's momentum, Adam's beta1; defaults to 0.9 (with sa-sam, sa-sgd and bsam: 0)"""
    nesterov: bool = False
    """use Nesterov momentum in SGD"""
    weight_decay: NonNegative = 5e-4
    """weight decay of the base optimizer"""

    epochs: Count = 30
    """passes over the training rows"""
    steps: Count | None = None
    """number of steps; overrides epochs"""
    batch_size: Count = 128
    """rows per step, over all processes together"""
    schedule: Literal["constant", "cosine", "multistep", "linear"] = "cosine"
    """decay of the learning rate, per step; sa-sam and sa-sgd set it themselves, starting from lr"""
    milestones: list[Fraction] = field(default_factory=lambda: [0.5, 0.75])
    """milestones of multistep, as fractions of the run"""
    decay: NonNegative = 0.1
    """factor at each milestone of multistep"""
    warmup: Fraction = 0.0
    """fraction of the run with a linear warm-up of the learning rate"""

    fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """train on this first fraction of the training rows"""
    per_class: Count | None = None
    """train on this many rows of each class, the first ones"""
    labels: str | None = None
    """human labels of the training rows: cifar10n-aggre, cifar10n-random1 (2, 3), cifar10n-worst; defaults to those
    of the data set"""
    label_noise: Fraction = 0.0
    """fraction of training labels replaced by other classes (symmetric noise), rows set aside included"""
    validation: BelowOne = 0.0
    """fraction of the training rows used for validation"""
    held_out: BelowOne = 0.0
    """fraction of the training rows used only in held-out passes of methods"""
    augment: list[str] = field(default_factory=list)
    """augmentations of training batches, such as crop, flip, mixup, or a pipeline of the papers: cifar,
    cifar-randaugment, fine-grained"""
    label_smoothing: BelowOne = 0.0
    """label smoothing of the cross-entropy"""
    sharp_rows: str | None = None
    """.npy file with the numbers of the training rows that the method applies to, as in SharpBalance (others get plain
    steps); `exchanged@10`: the rows that members of an ensemble exchange after epoch 10; sharpbalance defaults to a
    random half"""
    prune: BelowOne = 0.0
    """prune this fraction of the weights of linear and convolution layers: the smallest of the whole model"""
    prune_at: BelowOne = 0.5
    """prune after this fraction of the run; pruned weights stay zero"""
    clip: Annotated[float, Gt(0), Inf] | None = None
    """clip the norm of the method's gradient to this value"""
    ema: Fraction | None = None
    """decay of an exponential average of weights and BatchNorm statistics; evaluated beside the last ones"""
    swa: Fraction | None = None
    """average the weights after this fraction of the run, each with the same weight; evaluated beside the last ones"""
    swa_every: Literal["epoch", "step"] = "epoch"
    """average the weights at the end of every epoch or of every step"""

    precision: Literal["float32", "bf16"] = "float32"
    """precision of forward and backward passes; weights stay float32"""
    on_nonfinite: Literal["raise", "skip", "late"] = "raise"
    """on a non-finite loss or gradient, end the run or skip the step; late: check only at checkpoints, so that no step
    synchronises with a GPU"""
    evaluate_every: Count = 1
    """epochs between evaluations"""
    corruptions: list[str] = field(default_factory=list)
    """corruptions of the test rows evaluated at the end; `main` for the benchmark's 15, `all` for all 19; from official
    files (CIFAR-10-C, CIFAR-100-C, Tiny-ImageNet-C) in data_root, else remade"""
    severities: list[Annotated[int, Ge(1), Le(5)]] = field(default_factory=lambda: [1, 2, 3, 4, 5])
    """severities of the corruptions"""
    measures: list[str] = field(default_factory=list)
    """flatness measures on training rows, at the end and every `measure_every` epochs"""
    measure_every: Count | None = None
    """epochs between measurements; defaults to only at the end"""
    measure_rows: Count = 1024
    """number of training rows for measures, without augmentation"""

    seed: int = 0
    """seed of initial weights, order of rows and everything random"""
    data_seed: int | None = None
    """seed of label noise and of rows set aside, to vary runs on the same data; defaults to seed"""
    device: str | None = None
    """device; defaults to a GPU where there is one"""
    threads: Count | None = None
    """CPU threads of torch; bit-identical results need the same number, and a run resumes with the one it began with"""
    capture: bool = True
    """on a GPU, capture and replay steps as CUDA graphs where possible"""
    compile: bool = False
    """compile the model with torch.compile; worth it on a GPU in runs of tens of epochs; one process only"""
    channels_last: bool | None = None
    """memory format of convolutions; defaults to channels-last on a GPU for steppe's models on images"""
    fsdp: bool = False
    """shard the model over the processes (FSDP2) instead of replicating it (DDP)"""
    checkpoint_every: Annotated[float, Ge(0), Inf] = 60.0
    """seconds between checkpoints within an epoch; the end of an epoch writes one if the last is 10 seconds old"""
    log_every: Count | None = None
    """steps between records of the loss within an epoch, kept in the record of the epoch; defaults to none"""
    loggers: list[str] = field(default_factory=list)
    """loggers of records beside metrics.jsonl: csv, tensorboard, mlflow, wandb (`steppe loggers` lists all), or
    `package.module:factory`"""
    out: str | None = None
    """folder of the run; defaults to runs/ and a name from data, model, method and seed"""

    def __post_init__(self) -> None:
        for name, value in {**USUAL, **run_settings(self.method)}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check_fields(self, "")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise ValueError("nesterov needs SGD with momentum: set optimizer to sgd and momentum above 0")
        if self.lr_factors and sets_lr(self.method):
            raise ValueError(f"{self.method} has one step size for all parameters: leave out lr_factors")
        if self.precision != "float32" and sets_lr(self.method):
            raise ValueError(
                f"{self.method} takes its step size from the difference of two gradients, which {self.precision} "
                "rounds away, so that the step size shrinks to zero: set precision to float32"
            )
        for name, why in _NOT_SHARDED.items():
            if self.fsdp and getattr(self, name):
                raise ValueError(why)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method, without those that training adds."""
        return {**self.method_options, **({} if self.rho is None else {"rho": self.rho})}


FREE = ("out", "data_root", "loggers", "log_every", "checkpoint_every")
"""Settings that change no number, and may change from one start of a run to the next."""
_NOT_SHARDED = {
    "prune": "prune does not work with a sharded model: set fsdp to false, or prune to 0",
    "compile": "compile works in one process, and fsdp is for several: leave out one of them",
    "channels_last": "FSDP2 shards contiguous parameters only: leave out channels_last",
}


def check_config(config: Config, spelled: Callable[[str], str] = str) -> None:
    """Raise ValueError for unknown names and for options that their owner does not have.

    Parameters
    ----------
    config
        The run. A user's own model or logger is imported, and not built.
    spelled
        How the user writes the name of a setting, such as `--method-options`; errors use it.

    """
    from .._util.extras import require
    from .._util.user_code import imported, is_factory
    from ..data.augment import expanded
    from ..data.corruptions import selected
    from ..data.registry import check_name
    from ..data.small_images import check_labels
    from ..methods.registry import METHODS, method
    from ..nn.registry import check_options
    from .loggers import LOGGERS

    if not config.data.startswith(("folder:", "npz:")):
        check_name(config.data)
    if config.labels is not None:
        check_labels(config.labels, config.data)
        if config.label_noise:
            raise ValueError(
                f"{spelled('labels')} and {spelled('label_noise')} both make labels wrong: give one of them"
            )
    with _prefixed(spelled("model_options"), f" of {config.model}"):
        check_options(config.model, config.model_options)
    expanded(config.augment)
    selected(config.corruptions)
    for name in config.loggers:
        if is_factory(name):
            imported(name, "logger")
        else:
            _check("logger", name, LOGGERS)
            require(LOGGERS[name].extra)
    if config.measures:
        from ..measures.registry import resolve_measures  # imports scipy

        with _prefixed(spelled("measures")):
            resolve_measures(config.measures)
    known_device(config.device)
    if METHODS[config.method].needs_momentum and config.optimizer == "sgd" and not config.momentum:
        raise ValueError(f"{config.method} reads SGD's momentum, and {spelled('momentum')} is 0: give one above 0")
    if config.rho is not None:
        given = f"{spelled('rho')} is {config.rho:g}"
        if config.method == "none":
            raise ValueError(
                f"{given}, and method none, the base optimizer alone, has no rho: leave it out, or choose a method "
                "such as sam"
            )
        if (other := config.method_options.get("rho", config.rho)) != config.rho:
            raise ValueError(f"{given}, and rho in {spelled('method_options')} is {other!r}: give one of them")
    with _prefixed(spelled("method_options"), f" of {config.method}"):
        method(config.method, **config.options)


def known_device(name: str | None) -> None:
    """Raise ValueError unless this machine has a device of that name."""
    import torch

    devices = {"cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))}
    devices |= {"cuda"} if torch.cuda.is_available() else set()
    devices |= {"mps"} if torch.backends.mps.is_available() else set()
    if name is not None:
        _check("device", name, devices)


@contextmanager
def _prefixed(setting: str, about: str = "") -> Iterator[None]:
    """Put the name of the setting before errors that contain `about`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{setting}: {error}" if about in str(error) else str(error)) from error


def _check(what: str, name: str, valid: Iterable[str]) -> None:
    if name not in valid:
        raise ValueError(unknown(what, name, valid))
