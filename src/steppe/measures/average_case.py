"""Average-case sharpness: how much the loss grows in a random direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch

from ..core.ball import Ball, refuse_negative, stretch_
from ..core.draw import Draw
from ..core.metric import Metric
from ..core.triple import Law, gaussian
from ..core.vector import Vector
from .estimate import Estimate, Measure, NotFinite, looks, summarise
from .objective import Objective


def box(draw: Draw) -> Vector:
    """Uniform in [-1, 1]^d: the noise of the average case in the l_inf ball (A modern look, Tables 1 to 4)."""
    return draw.uniform(-1.0, 1.0)


@dataclass(frozen=True)
class AverageCase(Measure):
    """E L(w + rho T v) - L(w) with v from a symmetric law; Gaussian is A modern look, eq. 1.

    Every draw is taken with its mirror image, which cancels all odd orders of the loss and most of the noise.
    """

    rho: float = 0.1
    law: Law = gaussian
    metric: Metric | None = None
    n: int = 50  # pairs, so 100 losses as in A modern look, appendix H

    def __post_init__(self) -> None:
        refuse_negative(self.rho)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if self.n < 1:
            raise ValueError(f"an average needs n >= 1 pairs of draws, not {self.n}")
        before = objective.spent()
        scales = Ball(self.rho, self.metric).scales(objective)
        base = objective.loss()
        draws: list[float] = []
        due = set(looks(self.n))
        for i in range(self.n):
            d = stretch_(self.law(objective.draw(seed, objective.number, i)).clone(), scales)
            sides = [objective.loss(d), objective.loss(d.mul_(-1.0))]
            if not all(map(isfinite, sides)):
                raise NotFinite(
                    f"the loss is {sides[0]} and {sides[1]} at draw {i} and its mirror image, radius {self.rho}: "
                    "measure at a smaller radius, or in float64"
                )
            draws.append(sum(sides) / 2 - base)
            if len(draws) in due:
                cost = objective.spent() - before
                yield summarise(torch.tensor(draws, dtype=torch.float64), "unbiased", cost=cost)
