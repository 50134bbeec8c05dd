"""VaSSO: the ascent along a running mean of gradients, which varies less (Li & Giannakis 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.fields import Fraction
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register(
    "vasso",
    does="SAM that ascends along the mean gradient of the last steps",
    passes="2",
    paper="Li & Giannakis 2023",
)
@dataclass(frozen=True)
class VaSSO(Method):
    """The gradient at w + rho d / |d|, d = (1 - theta) d + theta g and at first d = g.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    theta
        The share of the current gradient; 1 is SAM. Default: the authors' released code.

    References
    ----------
    Li & Giannakis 2023, "Enhancing Sharpness-Aware Optimization Through Variance Suppression", NeurIPS.

    Examples
    --------
    >>> steppe.VaSSO(theta=1.5)
    Traceback (most recent call last):
    ValueError: theta of VaSSO takes a number, from 0 to 1, not 1.5

    """

    rho: Radius = 0.05
    theta: Fraction = 0.9
    slots = ("ascent",)
    pattern = always

    def plan(self, context: Context) -> Plan:
        here = (yield Probe()).grad
        before = context.recall("ascent")
        along = here if before is None else (before * (1 - self.theta)).add_(here, self.theta)
        context.remember("ascent", along.clone())
        return (yield Probe(at=ball(self.rho).within(context).steepest_(along, context))).grad
