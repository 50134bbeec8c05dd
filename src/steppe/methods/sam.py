"""SAM and what differs from it by geometry alone: l_p-SAM, ASAM, SAM-ON, un-normalised and K-step SAM."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.ball import Ascent, ball
from ..core.probe import Plan, Probe, Site
from ..core.vector import Vector


@dataclass(frozen=True)
class Plain:
    """No perturbation: the base optimizer itself."""

    slots = ()

    def options(self) -> Mapping[str, Any]:
        return {}

    def cost(self, step: int) -> int:
        return 1

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        return (yield Probe()).grad


@dataclass(frozen=True)
class SAM:
    """The gradient at the top of a ball around the weights (Foret et al. 2021); the ball makes it ASAM or SAM-ON."""

    rho: float | Ascent = 0.05  # a radius, or the neighbourhood to climb in (Foret et al. 2021, section 3.1)
    steps: int = 1  # ascent steps of rho / steps each (Andriushchenko & Flammarion 2022, appendix)
    decay_in_ascent: bool = False  # True: weight decay is part of the loss that is climbed (Foret et al.'s own code)
    slots = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"SAM climbs in steps >= 1, not {self.steps}")

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 1 + self.steps

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        here = yield Probe()
        ascent = ball(self.rho).within(site, 1 / self.steps)
        top = ascent.steepest_(self._climbed(here.grad, None, site), site)
        for _ in range(self.steps - 1):
            there = yield Probe(at=top.clone())
            top.add_(ascent.steepest_(self._climbed(there.grad, top, site), site))
        return (yield Probe(at=top)).grad

    def _climbed(self, grad: Vector, away: Vector | None, site: Site) -> Vector:
        """The gradient of the loss that is climbed, at the weights plus `away`."""
        if self.decay_in_ascent:
            decay = site.option("weight_decay")
            grad.add_((site.weights if away is None else site.weights + away) * decay)
        return grad
