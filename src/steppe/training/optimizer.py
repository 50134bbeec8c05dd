"""The method of a configuration around its base optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..optim.engine import SharpnessAware
from ..optim.named import build
from .config import Config
from .position import Course


def optimizer_of(config: Config, model: nn.Module, course: Course) -> SharpnessAware:
    """The method around the base optimizer."""
    options: dict[str, Any] = dict(config.method_options)
    if config.rho is not None:
        options["rho"] = config.rho
    if config.held_out and config.method.startswith("agnostic-sam"):
        options.setdefault("share", None)  # rows were set aside for it: the batch is not split
    if config.method in ("ssam-f", "ssam-d"):
        options.setdefault("every", course.per_epoch)  # the mask is renewed every epoch, as its users do
    if config.method == "ssam-d":
        options.setdefault("steps", course.steps)  # what the mask renews falls to nothing over the run
    late = config.on_nonfinite == "late"
    engine = {"model": model, "seed": config.seed, "on_nonfinite": None if late else config.on_nonfinite}
    return build(config.method, _base(config, model), **engine, **options)


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
