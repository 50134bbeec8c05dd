"""Loss and accuracy summed up on the device, read when somebody wants to know."""

from __future__ import annotations

from math import isnan

import torch
from torch import Tensor

from ..core.process_group import Workers
from .losses import Loss


class Sums:
    """The sum of the losses, of the right answers, and of the rows they were counted on."""

    def __init__(self, device: torch.device):
        precision = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        self.totals = torch.zeros(3, dtype=precision, device=device)

    @torch.no_grad()
    def add(self, losses: Tensor, output: Tensor, target: Tensor, loss: Loss, weight: float = 1.0) -> None:
        right = loss.correct(output, target)
        rows = torch.full((), len(losses), dtype=self.totals.dtype, device=self.totals.device)
        right_sum = rows.new_full((), float("nan")) if right is None else right.sum().to(rows.dtype)
        self.totals += weight * torch.stack([losses.detach().to(rows.dtype).sum(), right_sum, rows])

    def read(self, workers: Workers | None = None) -> dict[str, float]:
        """The means, over all workers if given; this is where a GPU is waited for."""
        totals = self.totals if workers is None else workers.all_reduce(self.totals.clone())
        loss, right, rows = totals.tolist()
        means = {"loss": loss / rows if rows else float("nan")}
        return means | ({"accuracy": right / rows} if rows and not isnan(right) else {})
