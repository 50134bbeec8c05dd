"""GSAM and its radius, which follows the learning rate (Zhuang et al. 2022)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from ..core.ball import Ascent, ball
from ..core.probe import Plan, Probe, Site


@dataclass(frozen=True)
class GSAM:
    """SAM minus alpha times the part of g(w) that is orthogonal to g(w + d): Zhuang et al. 2022, Algorithm 1."""

    rho: float | Ascent = 0.05  # Foret et al. 2021
    alpha: float = 0.4  # the authors' released example
    slots = ()

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 2

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        here = (yield Probe()).grad
        there = (yield Probe(at=ball(self.rho).within(site).steepest_(here.clone(), site))).grad
        # from the difference, so that nothing is left of it where the two gradients agree
        turned = here.add_(there, -1.0)
        along = turned.along(there)
        return there.mul_(1 + self.alpha * along).add_(turned, -self.alpha)


@dataclass
class RadiusFollowsLR:
    """Keeps every group's rho between rho_min and rho_max where its lr is between lr_min and lr_max; has `step()`.

    Below lr_min, as in a warm-up, the radius stays at rho_min: extrapolating there would make it negative.
    """

    optimizer: Optimizer
    rho_max: float
    rho_min: float
    lr_max: float
    lr_min: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.rho_min <= self.rho_max and 0 <= self.lr_min < self.lr_max):
            raise ValueError("RadiusFollowsLR needs 0 <= rho_min <= rho_max and 0 <= lr_min < lr_max")
        self.step()

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            position = (float(group["lr"]) - self.lr_min) / (self.lr_max - self.lr_min)
            group["rho"] = self.rho_min + (self.rho_max - self.rho_min) * min(max(position, 0.0), 1.0)
