"""SAM every k-th step, a rewrite of composer's `SAMOptimizer`, which needs a torch before 2.7.1.

docs/coming_from.md uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class SAMOptimizer:
    def __init__(self, base_optimizer: torch.optim.Optimizer, rho: float = 0.05, interval: int = 1):
        self.base, self.rho, self.interval = base_optimizer, rho, interval
        self.params = [p for group in base_optimizer.param_groups for p in group["params"]]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[..., Tensor]) -> Tensor:
        """The closure takes `ddp_sync` and `loss_dict`, clears the gradients and runs forward and backward."""
        closure = torch.enable_grad()(closure)
        self.steps += 1
        if self.steps % self.interval:
            loss = closure()
        else:
            loss = closure(ddp_sync=False)
            norm = torch.stack([p.grad.norm() for p in self.params]).norm()
            moves = [p.grad * (self.rho / (norm + 1e-12)) for p in self.params]
            self.move(moves, 1)
            ignored: dict[str, Any] = {}
            closure(loss_dict=ignored)
            self.move(moves, -1)  # by subtraction
        self.base.step()
        return loss

    def move(self, by: list[Tensor], sign: int) -> None:
        for p, e in zip(self.params, by, strict=True):
            p.add_(e, alpha=sign)
