"""Losses per row, cross-entropy for classes and squared error for numbers, and their sums on the device."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..core.process_group import Workers


class Loss(Protocol):
    """A loss per row, and whether a row is classified correctly."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Return one number per row."""
        ...

    def correct(self, output: Tensor, target: Tensor) -> Tensor | None:
        """Return one bool per row, or None where targets are numbers."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """For class numbers, and for class probabilities such as mixup's."""

    smoothing: float = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        # in float32 at least: exponentials of half-precision numbers are too coarse
        wide = output if output.dtype == torch.float64 else output.float()
        target = target.to(wide.dtype) if target.is_floating_point() else target
        return functional.cross_entropy(wide, target, reduction="none", label_smoothing=self.smoothing)

    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        return output.argmax(1) == (target.argmax(1) if target.is_floating_point() else target)


@dataclass(frozen=True)
class SquaredError:
    """The mean over the outputs of a row of (output - target)^2."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        rows = len(target)
        output, target = output.reshape(rows, -1), target.reshape(rows, -1)
        if output.shape != target.shape:
            raise ValueError(
                f"the model has {output.shape[1]} outputs per row and the targets have {target.shape[1]}: "
                "use a model with as many outputs"
            )
        wide = output if output.dtype == torch.float64 else output.float()
        return (wide - target).square().mean(1)

    def correct(self, output: Tensor, target: Tensor) -> None:
        return None


class Sums:
    """Sums of losses, of correct rows and of rows, kept on the device until they are read."""

    def __init__(self, device: torch.device):
        precision = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        self.totals = torch.zeros(3, dtype=precision, device=device)

    @torch.no_grad()
    def add(self, losses: Tensor, output: Tensor, target: Tensor, loss: Loss, weight: float = 1.0) -> None:
        """Add the rows of one batch."""
        right = loss.correct(output, target)
        rows = torch.full((), len(losses), dtype=self.totals.dtype, device=self.totals.device)
        right_sum = rows.new_full((), float("nan")) if right is None else right.sum().to(rows.dtype)
        self.totals += weight * torch.stack([losses.detach().to(rows.dtype).sum(), right_sum, rows])

    def read(self, workers: Workers | None = None) -> dict[str, float]:
        """Return mean loss and accuracy, over all workers if given. This synchronises with the device."""
        totals = self.totals if workers is None else workers.all_reduce(self.totals.clone())
        loss, right, rows = totals.tolist()
        means = {"loss": loss / rows if rows else float("nan")}
        return means | ({"accuracy": right / rows} if rows and not isnan(right) else {})
