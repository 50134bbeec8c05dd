"""LookSAM: SAM every k steps, whose change of the gradient is reused in between (Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.fields import Count, NonNegative
from ..core.probe import Context, Method, Plan, Probe
from ..core.vector import inverse
from .registry import register


@register(
    "looksam",
    does="SAM every few steps, with its effect reused in between",
    passes="1; every k steps 2",
    paper="Liu et al. 2022 (CVPR)",
)
@dataclass(frozen=True)
class LookSAM(Method):
    """SAM at steps 0, k, 2k ..., else g + alpha |g| / |g_v| g_v, g_v the part of SAM's gradient orthogonal to g.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    k
        The period of the SAM steps. Default: Liu et al. 2022, LookSAM-5.
    alpha
        The weight of the reused part. Default: Liu et al. 2022, section 5.

    Examples
    --------
    The passes of the first steps:

    >>> [steppe.METHODS["looksam"].passes_at(step, k=3) for step in range(5)]
    [2, 1, 1, 2, 1]

    """

    rho: Radius = 0.05
    k: Count = 5
    alpha: NonNegative = 0.7
    slots = ("across",)

    def pattern(self, step: int) -> Hashable:
        return step % self.k == 0

    def plan(self, context: Context) -> Plan:
        here = (yield Probe()).grad
        across = context.recall("across")
        if context.step % self.k and across is not None:
            return here.add_(across, self.alpha * here.norm() * inverse(across.norm()))
        there = (yield Probe(at=ball(self.rho).within(context).steepest_(here.clone(), context))).grad
        # computed from the difference, which is exactly 0 where the two gradients agree
        difference = there - here
        along = difference.along(here)
        context.remember("across", difference.add_(here, -along))
        return there
