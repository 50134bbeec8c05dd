"""Momentum-SAM: the perturbation from the base optimizer's momentum, at the price of one pass (Becker et al. 2024)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.ball import Ascent, ball
from ..core.probe import Plan, Probe, Site


@dataclass(frozen=True)
class MomentumSAM:
    """The gradient at w - rho m / |m|, m the momentum buffer: where the last step was heading."""

    rho: float | Ascent = 0.3  # Becker et al. 2024, released default
    slots = ()

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 1

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        momentum = site.momentum()
        if momentum is None:
            if site.step:
                raise ValueError(
                    "momentum-SAM perturbs along the base optimizer's momentum, and it keeps none: set it > 0"
                )
            return (yield Probe()).grad
        ahead = momentum.clone().mul_(-1.0)
        return (yield Probe(at=ball(self.rho).within(site).steepest_(ahead, site))).grad
