"""Base optimizers with torch's fused kernels, which a captured step needs to refuse an update on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

FUSED = (SGD, Adam, AdamW)  # exactly these: a subclass may step in its own way


def put_steps_on_device(base: Optimizer, params: Sequence[Tensor]) -> None:
    """Moves the counts that Adam keeps on the host, unless told otherwise, to where fused kernels read them."""
    for p in params:
        step = base.state.get(p, {}).get("step")
        if isinstance(step, Tensor) and step.device != p.device:
            base.state[p]["step"] = step.to(p.device, torch.float32)


def step_unless(base: Optimizer, refused: Tensor) -> None:
    """One step of a fused optimizer, which leaves everything alone where the flag, 0.0 or 1.0, is set."""
    base.found_inf = refused  # type: ignore[attr-defined]
    try:
        base.step()
    finally:
        del base.found_inf  # type: ignore[attr-defined]
