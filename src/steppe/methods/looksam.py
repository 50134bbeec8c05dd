"""LookSAM: SAM every k steps, and what it added to the gradient reused in between (Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.ball import Ascent, ball, inverse
from ..core.probe import Plan, Probe, Site


@dataclass(frozen=True)
class LookSAM:
    """At step 0, k, 2k ... SAM; else g + alpha |g| / |g_v| g_v, with g_v what SAM's gradient had across g."""

    rho: float | Ascent = 0.05  # Foret et al. 2021
    k: int = 5  # Liu et al. 2022, LookSAM-5
    alpha: float = 0.7  # Liu et al. 2022, section 5
    slots = ("across",)

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 1 if step % self.k else 2

    def pattern(self, step: int) -> Hashable:
        return step % self.k == 0

    def plan(self, site: Site) -> Plan:
        here = (yield Probe()).grad
        across = site.recall("across")
        if site.step % self.k and across is not None:
            return here.add_(across, self.alpha * here.norm() * inverse(across.norm()))
        there = (yield Probe(at=ball(self.rho).within(site).steepest_(here.clone(), site))).grad
        # from the difference, so that nothing is remembered of rounding where the two gradients agree
        turned = there - here
        along = turned.along(here)
        site.remember("across", turned.add_(here, -along))
        return there
