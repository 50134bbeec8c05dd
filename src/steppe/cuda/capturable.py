"""Which optimizers can be captured, and the switch of a base optimizer to fused or capturable kernels."""

from __future__ import annotations

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..core.probe import pattern_of
from ..optim.base import FUSED, put_steps_on_device
from ..optim.engine import SharpnessAware


def prepare(opt: SharpnessAware) -> str | None:
    """Prepares an optimizer for capture, or returns why its steps cannot be captured."""
    params = [p for g in opt.param_groups for p in g["params"]]
    devices = {p.device for p in params}
    if len(devices) > 1 or params[0].device.type != "cuda":
        return f"the weights are on {', '.join(sorted(map(str, devices)))}, and a graph is of one GPU"
    method = type(opt.method).__name__
    obstacles = {
        "several processes share the step, and their communication is not captured": _is_distributed(),
        "a GradScaler decides on the host after every step; bfloat16 needs none": _has_scaler(opt),
        "the optimizer has step hooks, which a replay would not call": _has_step_hooks(opt, opt.base),
        f"{method} does not say which steps are alike: give it pattern(step)": not hasattr(opt.method, "pattern"),
        f"{method} decides something on the host at every step": _has_no_pattern(opt),
    }
    reason = next((reason for reason, applies in obstacles.items() if applies), None)
    return reason or make_capturable(opt.base, guarded=opt.on_nonfinite is not None)


def _has_step_hooks(*optimizers: Optimizer) -> bool:
    return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks) or any(
        getattr(o, name, None)
        for o in optimizers
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    )


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _has_scaler(opt: SharpnessAware) -> bool:
    return opt.scaler is not None and bool(opt.scaler.is_enabled())


def _has_no_pattern(opt: SharpnessAware) -> bool:
    return all(pattern_of(opt.method, step) is None for step in (1, 2))


def make_capturable(base: Optimizer, *, guarded: bool) -> str | None:
    """Switches a base optimizer to kernels that can be captured, or returns why there are none.

    Parameters
    ----------
    base
        The optimizer; its groups are changed in place.
    guarded
        Whether the device skips non-finite steps, which fused kernels alone support.

    """
    params = [p for g in base.param_groups for p in g["params"]]
    name = type(base).__name__
    fused = type(base) in FUSED and all(p.is_floating_point() and not p.is_sparse for p in params)
    if not fused and not all("capturable" in g for g in base.param_groups):
        return f"{name} has neither a fused nor a capturable form: torch's SGD, Adam and AdamW have"
    if not fused and guarded:
        return f"{name} cannot skip a step on the device: give on_nonfinite=None, or SGD, Adam or AdamW as base"
    if any(g.get("differentiable") for g in base.param_groups):
        return f"{name} is differentiable, and a graph keeps no derivatives"
    for group in base.param_groups:
        if fused:
            group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
    put_steps_on_device(base, params)
    return None
