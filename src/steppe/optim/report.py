"""Diagnostics of a step, which `SharpnessAware(..., record=True).last` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.probe import NO_GRADIENT, Reading
from ..core.vector import Vector


@dataclass
class Report:
    """Diagnostics of one step: tensors on the device, so that recording does not synchronize."""

    losses: list[Tensor] = field(default_factory=list)  # L(w) first, L(w + e) last
    displacements: list[Tensor] = field(default_factory=list)  # ||e|| after rounding, 0 where a probe stayed at w
    grad_norms: list[Tensor] = field(default_factory=list)
    cosines: list[Tensor] = field(default_factory=list)  # of each probe's gradient with the first one's
    lr: Any = None
    rho: Any = None
    _first: Vector | None = field(default=None, repr=False)
    distance: Tensor | None = field(default=None, repr=False)  # ||e|| of the current probe

    def add(self, reading: Reading, loss: Tensor | None) -> None:
        if loss is not None:
            self.losses.append(loss)
        if reading.grad is NO_GRADIENT:
            return
        norm = reading.grad.norm()
        self.displacements.append(norm * 0 if self.distance is None else self.distance)
        self.grad_norms.append(norm)
        if self._first is None:
            self._first = reading.grad.clone()
        self.cosines.append(self._first.dot(reading.grad) / (self.grad_norms[0] * norm))

    def read(self) -> dict[str, float]:
        """The numbers as Python floats; synchronizes with the device."""
        numbers = {
            "loss": self.losses[0] if self.losses else None,
            "perturbed_loss": self.losses[-1] if self.losses else None,
            "displacement": self.displacements[-1],
            "grad_norm": self.grad_norms[0],
            "perturbed_grad_norm": self.grad_norms[-1],
            "cosine": self.cosines[-1],
            "lr": self.lr,
            "rho": self.rho,
        }
        return {k: float(v) for k, v in numbers.items() if v is not None}
