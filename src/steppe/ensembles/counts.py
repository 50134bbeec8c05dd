"""What members count of an epoch, losses and right answers, found for all of them with the pass itself."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from ..measures.workers import Workers
from ..training.losses import Loss
from ..training.sums import Sums


@torch.no_grad()
def counted(output: Tensor, losses: Tensor, y: Tensor, weights: Tensor, loss: Loss) -> Tensor:
    """Every member's sums of losses, right answers and rows; those without weight are only there to fill."""
    real = weights > 0
    right = loss.correct(output.flatten(0, 1), y.flatten(0, 1))
    rights = losses.new_full(losses.shape, float("nan")) if right is None else right.view(losses.shape)
    each = torch.stack([losses.double(), rights.double(), real.double()])
    return each.masked_fill(~real, 0.0).sum(2).T.contiguous()


@final
class Counts:
    """What a member's loop takes for its sums: what it would add up has been added up already."""

    def __init__(self, own: Sums):
        self._own = own
        self.last: Tensor | None = None  # of the member's last pass

    @property
    def totals(self) -> Tensor:
        return self._own.totals

    def add(self, losses: Tensor, output: Tensor, target: Tensor, loss: Loss, weight: float = 1.0) -> None:
        if self.last is None:
            self._own.add(losses, output, target, loss, weight)
        else:
            self._own.totals.add_(self.last, alpha=weight)

    def read(self, workers: Workers | None = None) -> dict[str, float]:
        return self._own.read(workers)
