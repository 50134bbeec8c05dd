"""R-SAM: the ascent from a randomly smoothed point (Liu et al. 2022, "Random Sharpness-Aware Minimization")."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.fields import NonNegative
from ..core.metric import Filterwise
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register

FILTERS = Filterwise(eta=0.0, everywhere=True, rows=True)


@register("rsam", does="SAM from a randomly smoothed gradient", passes="2", paper="Liu et al. 2022 (NeurIPS)")
@dataclass(frozen=True)
class RSAM(Method):
    """The gradient at w + rho (z + smoothing g(w + z)) / |.|, z Gaussian noise of scale sigma |w_filter|.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    sigma
        The scale of the noise relative to the norm of each filter; no default was published.
    smoothing
        The weight of the smoothed gradient relative to the noise; no default was published.

    References
    ----------
    Liu et al. 2022, "Random Sharpness-Aware Minimization", NeurIPS.

    Examples
    --------
    >>> steppe.RSAM(rho=0.05, sigma=0.1)
    RSAM(rho=0.05, sigma=0.1, smoothing=1.0)

    """

    rho: Radius = 0.05
    sigma: NonNegative = 0.05
    smoothing: NonNegative = 1.0
    pattern = always

    def plan(self, context: Context) -> Plan:
        noise = context.draw(0, context.weights).normal().mul_(FILTERS(context)).mul_(self.sigma)
        smoothed = (yield Probe(at=noise.clone())).grad
        uphill = smoothed.mul_(self.smoothing).add_(noise)
        return (yield Probe(at=ball(self.rho).within(context).steepest_(uphill, context))).grad
