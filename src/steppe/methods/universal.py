"""The universal (phi, psi, mu)-SAM class, with Trace-, Frob- and Det-SAM (universal-SAM paper, Algorithms 1-3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.arguments import check_nonnegative
from ..core.fields import Count, NonNegative, Positive, check_fields
from ..core.probe import Context, Method, Plan, Probe, always
from ..core.triple import DETERMINANT, FROBENIUS, TRACE, Hypercube, TripleLike
from .registry import register


@dataclass(frozen=True)
class UniversalSAM(Method):
    """The gradient of L(w) + strength * rho^2 * phi(mean_i psi((L(w + rho v_i) - L(w)) / rho^2)), v_i from mu.

    Parameters
    ----------
    triple
        The functional of the Hessian, as (phi, psi, mu).
    rho
        The radius. Default: section 4, Trace-SAM.
    n
        The number of draws per step from each law. Default: section 4, Trace-SAM.
    strength
        The weight of the functional. Default: Definition 8 has no lambda, which is lambda = 1.

    References
    ----------
    Tahmasebi et al. 2024, "A Universal Class of Sharpness-Aware Minimization Algorithms".

    Examples
    --------
    >>> steppe.UniversalSAM("trace") == steppe.TraceSAM()
    True

    """

    triple: TripleLike
    rho: NonNegative = 0.01
    n: Count = 1
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, tensors=True)
        self.triple.correction(self.n)  # raises if n is too small for it

    pattern = always

    def plan(self, context: Context) -> Plan:
        rho = context.option("rho")
        if isinstance(rho, list):
            raise ValueError(f"a (phi, psi, mu) measure has one radius for all weights, not {sorted(set(rho))}")
        check_nonnegative(rho)
        here = yield Probe()
        if not isinstance(rho, Tensor) and rho == 0:
            return here.grad
        losses, grads = [here.loss], [here.grad]
        laws = self.triple.laws
        for i in range(self.n * len(laws)):
            draw = context.draw(i, here.grad)
            direction = laws[i % len(laws)](draw)
            if direction is draw.weights or direction is draw.grad:  # the next line writes into it
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
        """The derivative of the objective, a scalar function of the losses of all probes, by each loss."""
        with torch.enable_grad():
            x = losses.double().requires_grad_()
            u = ((x[1:] - x[0]) / rho**2).reshape(self.n, len(self.triple.laws))
            objective = x[0] + self.strength * rho**2 * self.triple.value(u)
            return torch.autograd.grad(objective, x)[0]


@register("trace-sam", does="penalises the trace of the Hessian", passes="1 + n", paper="Tahmasebi et al. 2024")
def TraceSAM(rho: NonNegative = 0.01, n: Count = 1, strength: float = 1.0, triple: TripleLike = TRACE) -> UniversalSAM:
    """Trace-SAM, which penalizes the trace of the Hessian (universal-SAM paper, Algorithm 2).

    Parameters
    ----------
    rho, n
        The radius and the number of draws per step. Defaults: section 4.
    strength
        The weight of the trace.
    triple
        The functional, `TRACE`.

    References
    ----------
    Tahmasebi et al. 2024, "A Universal Class of Sharpness-Aware Minimization Algorithms".

    Examples
    --------
    >>> steppe.TraceSAM(n=2) == steppe.method("trace-sam", n=2)
    True

    """
    return UniversalSAM(triple, rho, n, strength)


@register(
    "frob-sam",
    does="penalises the Frobenius norm of the Hessian",
    passes="1 + n",
    paper="Tahmasebi et al. 2024",
)
def FrobSAM(
    rho: NonNegative = 0.005, n: Count = 2, strength: float = 0.00125, triple: TripleLike = FROBENIUS
) -> UniversalSAM:
    """Frob-SAM, which penalizes ||H||_F^2 (universal-SAM paper, Algorithm 3).

    Parameters
    ----------
    rho, n
        The radius and the number of draws per step. Defaults: the released script, in the grid of appendix O.
    strength
        The weight of ||H||_F^2. The released code's lambda is 4 * strength: its default 0.005 is 0.00125 here.
    triple
        The functional, `FROBENIUS`.

    References
    ----------
    Tahmasebi et al. 2024, "A Universal Class of Sharpness-Aware Minimization Algorithms".

    Examples
    --------
    >>> steppe.FrobSAM().triple == steppe.FROBENIUS
    True

    """
    return UniversalSAM(triple, rho, n, strength)


@register("det-sam", does="penalises the determinant of the Hessian", passes="1 + n", paper="Tahmasebi et al. 2024")
def DetSAM(
    rho: NonNegative = 1.0,
    n: Count = 1,
    strength: float = 0.01,
    triple: TripleLike = DETERMINANT,
    side: Positive | None = None,
) -> UniversalSAM:
    """Det-SAM, which penalizes the determinant of the Hessian (universal-SAM paper, appendix O).

    Parameters
    ----------
    rho, n
        The radius, in units of the hypercube, and the number of draws per step. Defaults: appendix O.
    strength
        The weight of the determinant. Default: from the grid {0.01, 0.1, 1} of appendix O.
    triple
        The functional, `DETERMINANT`.
    side
        The side of the hypercube. Defaults to that of the triple, 0.02 (appendix O).

    References
    ----------
    Tahmasebi et al. 2024, "A Universal Class of Sharpness-Aware Minimization Algorithms".

    Examples
    --------
    >>> steppe.DetSAM(side=0.1).triple.laws
    (Hypercube(half=0.05),)

    """
    if side is not None:
        triple = replace(triple, laws=(Hypercube(side / 2),))
    return UniversalSAM(triple, rho, n, strength)


@register(
    "universal-sam",
    does="penalises any functional of the Hessian given as (phi, psi, mu)",
    passes="1 + n * len(triple.laws)",
    paper="Tahmasebi et al. 2024",
)
def _universal(triple: TripleLike = TRACE, rho: NonNegative = 0.01, n: Count = 1, strength: float = 1.0) -> Method:
    """Any functional of the Hessian, by name or from named parts.

    Parameters
    ----------
    triple
        The functional: trace, frobenius, determinant or determinant-released; or a mapping of its parts phi and psi
        (identity, moments, twice-variance, {"times": NUMBER}), mu (sphere, gaussian, rademacher, uphill,
        {"hypercube": HALF}), logs and correction (none, bessel), where `like` names a triple for those left out.
    rho, n
        The radius and the number of draws per step. Defaults: section 4, Trace-SAM.
    strength
        The weight of the functional. Default: Definition 8 has no lambda, which is lambda = 1.

    """
    return UniversalSAM(triple, rho, n, strength)
