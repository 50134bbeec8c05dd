"""What training lowers and evaluation tells: cross-entropy for classes, squared error for numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Loss(Protocol):
    """A loss of every row, and whether a row is right where that makes sense."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """One number a row."""
        ...

    def correct(self, output: Tensor, target: Tensor) -> Tensor | None:
        """One bool a row, or None where targets are numbers."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """For class numbers, and for shares of classes such as mixup makes."""

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
                f"the model gives {output.shape[1]} numbers a row, and the targets have {target.shape[1]}: "
                "take a model with as many outputs"
            )
        wide = output if output.dtype == torch.float64 else output.float()
        return (wide - target).square().mean(1)

    def correct(self, output: Tensor, target: Tensor) -> None:
        return None
