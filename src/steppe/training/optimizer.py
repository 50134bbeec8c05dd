"""The method of a configuration around its base optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..methods.registry import METHODS, method
from ..methods.sa_sam import SASAM, SASGD
from ..methods.sharpbalance import OnSomeRows, SharpBalance
from ..optim.build import build
from ..optim.engine import SharpnessAware
from .config import Config
from .position import Course

OWN_LR = (SASAM, SASGD)


def options_of(config: Config, course: Course) -> dict[str, Any]:
    """What the method is made with."""
    options: dict[str, Any] = dict(config.method_options)
    if config.rho is not None:
        options["rho"] = config.rho
    if config.held_out and config.method.startswith("agnostic-sam"):
        options.setdefault("share", None)  # rows were set aside for it: the batch is not split
    if config.method in ("ssam-f", "ssam-d"):
        options.setdefault("every", course.per_epoch)  # the mask is renewed every epoch, as its users do
    if config.method == "ssam-d":
        options.setdefault("steps", course.steps)  # what the mask renews falls to nothing over the run
    return options


def optimizer_of(config: Config, model: nn.Module, course: Course) -> SharpnessAware:
    """The method around the base optimizer."""
    options = options_of(config, course)
    engine: dict[str, Any] = {"model": model, "seed": config.seed}
    engine["on_nonfinite"] = None if config.on_nonfinite == "late" else config.on_nonfinite
    base = _base(config, model)
    if config.sharp_rows is None or config.method not in METHODS:
        return build(config.method, base, **engine, **options)
    chosen = method(config.method, **options)
    inner = chosen.method if isinstance(chosen, SharpBalance) else chosen
    return SharpnessAware(base, OnSomeRows(inner), **engine)


def sets_lr(opt: SharpnessAware) -> bool:
    """Whether the method finds the learning rate itself and goes on from what it found."""
    inner = opt.method.method if isinstance(opt.method, OnSomeRows) else opt.method
    return isinstance(inner, OWN_LR)


def finds_lr(config: Config, options: Mapping[str, Any]) -> bool:
    """The same of a configuration with these options of its method."""
    return isinstance(method(config.method, **options), OWN_LR)


def _base(config: Config, model: nn.Module) -> Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    decay, lr = config.weight_decay, config.lr
    match config.optimizer:
        case "sgd":
            return SGD(parameters, lr, config.momentum, weight_decay=decay, nesterov=config.nesterov)
        case "adam":
            return Adam(parameters, lr, (config.momentum, 0.999), weight_decay=decay)  # beta2: torch's default
        case "adamw":
            return AdamW(parameters, lr, (config.momentum, 0.999), weight_decay=decay)
