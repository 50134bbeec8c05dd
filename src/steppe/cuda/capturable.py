"""What a CUDA graph can hold, and base optimizers made so: fused, or else with all their numbers on the device."""

from __future__ import annotations

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..core.probe import pattern_of
from ..optim.base import FUSED, put_steps_on_device
from ..optim.engine import SharpnessAware


def obstacle(opt: SharpnessAware) -> str | None:
    """Why the steps of an optimizer cannot be recorded, or None, and then its base is ready for it."""
    params = [p for g in opt.param_groups for p in g["params"]]
    devices = {p.device for p in params}
    if len(devices) > 1 or params[0].device.type != "cuda":
        return f"the weights are on {', '.join(sorted(map(str, devices)))}, and a graph is of one GPU"
    method = type(opt.method).__name__
    reasons = {
        "several processes share the step, and their exchange is not recorded": _distributed(),
        "a GradScaler decides on the host after every step; bfloat16 needs none": _scales(opt),
        "the optimizer has step hooks, which a replay would not call": hooked(opt, opt.base),
        f"{method} does not say which steps are alike: give it pattern(step)": not hasattr(opt.method, "pattern"),
        f"{method} decides something on the host at every step": _never_alike(opt),
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    return found or made_capturable(opt.base, guarded=opt.on_nonfinite is not None)


def hooked(*optimizers: Optimizer) -> bool:
    """Whether somebody wants to be called at every step that is taken."""
    return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks) or any(
        getattr(o, name, None)
        for o in optimizers
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    )


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _scales(opt: SharpnessAware) -> bool:
    return opt.scaler is not None and bool(opt.scaler.is_enabled())


def _never_alike(opt: SharpnessAware) -> bool:
    """Whether no step can be recorded."""
    return all(pattern_of(opt.method, step) is None for step in (1, 2))


def made_capturable(base: Optimizer, *, guarded: bool) -> str | None:
    """Switches a base optimizer to the kernels that a graph can hold, or says why there are none."""
    params = [p for g in base.param_groups for p in g["params"]]
    name = type(base).__name__
    fused = type(base) in FUSED and all(p.is_floating_point() and not p.is_sparse for p in params)
    if not fused and not all("capturable" in g for g in base.param_groups):
        return f"{name} has neither a fused nor a capturable form: torch's SGD, Adam and AdamW have"
    if not fused and guarded:
        return f"{name} cannot refuse a step on the device: give on_nonfinite=None, or SGD, Adam or AdamW as base"
    if any(g.get("differentiable") for g in base.param_groups):
        return f"{name} is differentiable, and a graph keeps no derivatives"
    for group in base.param_groups:
        if fused:
            group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
    put_steps_on_device(base, params)
    return None
