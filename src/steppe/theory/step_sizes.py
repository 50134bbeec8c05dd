"""SA-SAM's step sizes: what they are bounded by on quadratics, and where SA-SAM comes to rest there.

The rule: eta_t = min(|w_t - w_(t-1)| / (2 |g_t - g_(t-1)|), sqrt(1 + delta theta_(t-1)) eta_(t-1)). On a loss whose
gradient is beta-Lipschitz the first branch is at least 1 / 2 beta, and the second never falls; the second step takes
the first branch. So eta_t >= 1 / 2 beta from the second step on, whatever eta_0. The paper says 1 / beta, which would
need the damping 1 of the released code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from ..methods.sa_sam import SASAM, SASGD
from ..optim.engine import SharpnessAware
from .universal import Bowl


def least(beta: float, damping: float = 2.0) -> float:
    """The lower bound 1 / (damping beta) of every step size but the first, on a beta-smooth loss."""
    return 1 / (damping * beta)


def most(alpha: float, damping: float = 2.0) -> float:
    """The upper bound 1 / (damping alpha) of every step size but the first, alpha a quadratic's least curvature."""
    return 1 / (damping * alpha)


def growth(delta: float = 0.02) -> float:
    """The largest lasting factor from one step size to the next, theta = sqrt(1 + delta theta): above 1 + delta/2."""
    return (delta + sqrt(delta**2 + 4)) / 2


@dataclass(frozen=True)
class Rest:
    """Where SA-SAM comes to rest on a quadratic: it steps to and fro across the steepest direction for ever."""

    length: float  # |w| on either side
    radius: float
    loss: float


def rest(top: float, damping: float = 2.0) -> Rest:
    """The two-cycle w -> -w of SA-SAM along the top eigenvalue: |w| = rho / (2 damping - 1), rho^2 = 1 / (damping top).

    A step is w - eta top (w + rho sign w) = (1 - 1/damping) w - rho/damping sign w. Its loss is
    1 / (2 damping (2 damping - 1)^2) whatever the curvature: 1/36 with the paper's damping 2, and 1/2 with the released
    code's 1. With rho_t = sqrt(eta_t) SA-SAM does not converge on a quadratic, however long it runs.
    """
    radius = 1 / sqrt(damping * top)
    length = radius / (2 * damping - 1)
    return Rest(length, radius, top * length**2 / 2)


@dataclass(frozen=True)
class Point:
    """A step of training on a quadratic: the step size taken, and where it led."""

    eta: float
    weights: Tensor
    loss: float


def descend(method: SASAM | SASGD, hessian: Tensor, start: Tensor, steps: int, eta_0: float) -> Iterator[Point]:
    """Training on w' H w / 2 with a smoothness-adaptive method; every point has the step size that led to it."""
    model = Bowl(hessian, start)
    base = torch.optim.SGD(model.parameters(), lr=eta_0)
    opt = SharpnessAware(base, method, model=model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss: Tensor = model()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(steps):
        opt.step(closure)
        w = model.w.detach().clone()
        yield Point(float(base.param_groups[0]["lr"]), w, (w @ hessian @ w / 2).item())
