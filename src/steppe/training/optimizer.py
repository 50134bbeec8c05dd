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
from .schedule import Course

OWN_LR = (SASAM, SASGD)


def options_of(config: Config, course: Course) -> dict[str, Any]:
    """Return the options of the method, including those that follow from the run."""
    options: dict[str, Any] = dict(config.method_options)
    if config.rho is not None:
        options["rho"] = config.rho
    if config.held_out and config.method.startswith("agnostic-sam"):
        options.setdefault("share", None)  # held-out rows exist, so the batch is not split
    if config.method in ("ssam-f", "ssam-d"):
        options.setdefault("every", course.per_epoch)  # a new mask every epoch, as in its papers' runs
    if config.method == "ssam-d":
        options.setdefault("steps", course.steps)  # the renewed share of the mask decays to zero over the run
    return options


def optimizer_of(config: Config, model: nn.Module, course: Course) -> SharpnessAware:
    """Build the method around its base optimizer."""
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
    """Return whether the method sets the learning rate itself."""
    inner = opt.method.method if isinstance(opt.method, OnSomeRows) else opt.method
    return isinstance(inner, OWN_LR)


def finds_lr(config: Config, options: Mapping[str, Any]) -> bool:
    """Return the same for a configuration with these method options."""
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
