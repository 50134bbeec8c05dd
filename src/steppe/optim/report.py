"""What the last step did, for those who ask whether the method is active at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.probe import Reading
from ..core.vector import Vector


@dataclass
class Report:
    """Diagnostics of one step; device tensors until they are read, so that recording never waits."""

    losses: list[Tensor] = field(default_factory=list)  # L(w) first, L(w + e) last
    displacements: list[Tensor] = field(default_factory=list)  # ||e||, 0 where a probe stayed at w
    grad_norms: list[Tensor] = field(default_factory=list)
    cosines: list[Tensor] = field(default_factory=list)  # of each probe's gradient with the first one's
    lr: Any = None
    rho: Any = None
    _first: Vector | None = field(default=None, repr=False)
    _next: Tensor | None = field(default=None, repr=False)  # how far the probe under way has moved

    def moved(self, displacement: Vector | None) -> None:
        self._next = displacement.norm() if displacement is not None else None

    def took(self, reading: Reading, loss: Tensor | None) -> None:
        if loss is not None:
            self.losses.append(loss)
        if reading._grad is None:
            return
        norm = reading.grad.norm()
        self.displacements.append(norm * 0 if self._next is None else self._next)
        self.grad_norms.append(norm)
        if self._first is None:
            self._first = reading.grad.clone()
        self.cosines.append(self._first.dot(reading.grad) / (self.grad_norms[0] * norm))

    def read(self) -> dict[str, float]:
        """The numbers, as Python floats: this is where a GPU is waited for."""
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
