"""The universal (phi, psi, mu)-SAM class, with Trace-, Frob- and Det-SAM (universal-SAM paper, Algorithms 1-3)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.ball import refuse_negative
from ..core.probe import Plan, Probe, Site
from ..core.triple import DETERMINANT, FROBENIUS, TRACE, Triple


@dataclass(frozen=True)
class UniversalSAM:
    """The gradient of L(w) + strength * rho^2 * phi(mean_i psi((L(w + rho v_i) - L(w)) / rho^2)), v_i from mu."""

    triple: Triple
    rho: float = 0.01  # section 4, Trace-SAM
    n: int = 1  # section 4, Trace-SAM: one draw a step
    strength: float = 1.0  # Definition 8 has no lambda, which is lambda = 1
    slots = ()

    def __post_init__(self) -> None:
        refuse_negative(self.rho)
        self.triple.correction(self.n)  # refuses an n that is too small for it

    def options(self) -> Mapping[str, Any]:
        return {"rho": self.rho}

    def cost(self, step: int) -> int:
        return 1 + self.n * len(self.triple.laws)

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        rho = site.option("rho")
        if isinstance(rho, list):
            raise ValueError(f"a (phi, psi, mu) measure has one radius for all weights, not {sorted(set(rho))}")
        refuse_negative(rho)
        here = yield Probe()
        if not isinstance(rho, Tensor) and rho == 0:
            return here.grad
        losses, grads = [here.loss], [here.grad]
        laws = self.triple.laws
        for i in range(self.n * len(laws)):
            draw = site.draw(i, here.grad)
            direction = laws[i % len(laws)](draw)
            if direction is draw.weights or direction is draw.grad:  # not the law's own: what follows writes into it
                direction = direction.clone()
            there = yield Probe(at=direction.mul_(rho))
            losses.append(there.loss)
            grads.append(there.grad)
        slopes = self._slopes(torch.stack(losses), rho)
        total = grads[0].mul_(slopes[0])
        for grad, slope in zip(grads[1:], slopes[1:], strict=True):
            total.add_(grad.mul_(slope))
        return total

    def _slopes(self, losses: Tensor, rho: Any) -> Tensor:
        """d/dL_i of the trained objective, which is a scalar function of the probed losses."""
        with torch.enable_grad():
            x = losses.double().requires_grad_()
            u = ((x[1:] - x[0]) / rho**2).reshape(self.n, len(self.triple.laws))
            objective = x[0] + self.strength * rho**2 * self.triple.value(u)
            return torch.autograd.grad(objective, x)[0]


def trace_sam(rho: float = 0.01, n: int = 1, strength: float = 1.0, triple: Triple = TRACE) -> UniversalSAM:
    """Towards a small trace; rho and n from section 4 of the universal-SAM paper."""
    return UniversalSAM(triple, rho, n, strength)


def frob_sam(rho: float = 0.005, n: int = 2, strength: float = 0.00125, triple: Triple = FROBENIUS) -> UniversalSAM:
    """Towards a small ||H||_F^2, by the paper's formula; the released code's lambda is 4 * strength.

    rho and n are the released script's, in the grid of appendix O; its lambda 0.005 is strength 0.00125 here.
    """
    return UniversalSAM(triple, rho, n, strength)


def det_sam(rho: float = 1.0, n: int = 1, strength: float = 0.01, triple: Triple = DETERMINANT) -> UniversalSAM:
    """Towards a small determinant; rho, the cube's side 0.02 and the grid {0.01, 0.1, 1} from appendix O."""
    return UniversalSAM(triple, rho, n, strength)
