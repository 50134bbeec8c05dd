"""Base optimizers with torch's fused kernels, which update all weights at once and wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

FUSED = (SGD, Adam, AdamW)  # exactly these: a subclass may step in its own way
DEVICES = ("cuda",)  # where fused kernels are chosen unless somebody has chosen others


def fuse(base: Optimizer) -> list[dict[str, Any]]:
    """Switches the groups on a GPU for which nobody has chosen kernels to fused ones, and returns them."""
    groups = [g for g in base.param_groups if type(base) in FUSED and _open(g)]
    for group in groups:
        group["fused"] = True
        put_steps_on_device(base, group["params"])
    return groups


def put_steps_on_device(base: Optimizer, params: Sequence[Tensor]) -> None:
    """Moves the counts that Adam keeps on the host, unless told otherwise, to where fused kernels read them."""
    for p in params:
        step = base.state.get(p, {}).get("step")
        if isinstance(step, Tensor) and step.device != p.device:
            base.state[p]["step"] = step.to(p.device, torch.float32)


def _open(group: dict[str, Any]) -> bool:
    """Whether nobody has chosen kernels for a group, and there are fused ones for its weights."""
    chosen = any(group.get(name) is not None for name in ("fused", "foreach")) or group.get("differentiable")
    return not chosen and all(map(_fusible, group["params"]))


def _fusible(p: Tensor) -> bool:
    return type(p) in (Tensor, nn.Parameter) and p.device.type in DEVICES and p.is_floating_point()
