"""Stepping through a GradScaler after a closure has run all passes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.optim import Optimizer


def step_by(scaler: Any, opt: Optimizer) -> None:
    """Unscales and, unless a pass overflowed, has the scaler call `opt.step()`, whose hooks have run already."""
    try:
        scaler.unscale_(opt)
    except RuntimeError as error:
        raise RuntimeError(
            "scaler.step(opt, closure) would apply gradients that are still scaled: call opt.step(closure), "
            "then scaler.update()."
        ) from error
    hooks = opt._optimizer_step_pre_hooks, opt._optimizer_step_post_hooks
    opt._optimizer_step_pre_hooks, opt._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    try:
        scaler.step(opt)
    finally:
        opt._optimizer_step_pre_hooks, opt._optimizer_step_post_hooks = hooks
