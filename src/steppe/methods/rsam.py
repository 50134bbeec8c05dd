"""R-SAM: the ascent from a randomly smoothed point (Liu et al. 2022, "Random Sharpness-Aware Minimization")."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.ball import Ascent, ball
from ..core.metric import Filterwise
from ..core.probe import Plan, Probe, Site

FILTERS = Filterwise(eta=0.0, everywhere=True, rows=True)


@dataclass(frozen=True)
class RSAM:
    """The gradient at w + rho (z + smoothing g(w + z)) / |.|, z Gaussian noise of scale sigma |w_filter|."""

    rho: float | Ascent = 0.05  # Foret et al. 2021
    sigma: float = 0.05  # noise, as a share of each filter's norm; no default was published
    smoothing: float = 1.0  # weight of the smoothed gradient beside the noise; no default was published
    slots = ()

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 2

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        noise = site.draw(0, site.weights).normal().mul_(FILTERS(site)).mul_(self.sigma)
        smoothed = (yield Probe(at=noise.clone())).grad
        uphill = smoothed.mul_(self.smoothing).add_(noise)
        return (yield Probe(at=ball(self.rho).within(site).steepest_(uphill, site))).grad
