"""Scale, backward, clip and step, a rewrite of timm's `NativeScaler`; importing timm needs torchvision.

docs/coming_from.md uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class NativeScaler:
    def __init__(self, device: str = "cuda"):
        self.scaler = torch.amp.GradScaler(device)

    def __call__(
        self,
        loss: Tensor,
        optimizer: torch.optim.Optimizer,
        clip_grad: float | None = None,
        parameters: Iterable[Tensor] = (),
    ) -> None:
        self.scaler.scale(loss).backward()
        if clip_grad is not None:
            self.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self.scaler.step(optimizer)
        self.scaler.update()
