"""Smoothness-adaptive step sizes, with the indices of Algorithm 1 put right: theta_{t-1} in line 5."""

from math import inf, sqrt

from torch import Tensor

from .flat import Base, Landscape


class SmoothnessAdaptive:
    """SA-SAM, or without `ascent` SA-SGD; keeps track of the branches taken, 1 or 2."""

    def __init__(
        self,
        ascent: bool = True,
        delta: float = 0.02,
        damping: float = 2.0,
        epsilon: float = 0.0,
        lagging_radius: bool = False,
    ):
        self.ascent, self.delta, self.damping = ascent, delta, damping
        self.epsilon, self.lagging_radius = epsilon, lagging_radius
        self.theta = inf
        self.previous: Tensor | None = None
        self.branches: list[int] = []
        self.sizes: list[float] = []

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g, before = land.grad(w), base.lr
        if self.previous is not None:
            moved = float((w - self.previous).norm())
            turned = float((g - land.grad(self.previous)).norm())
            by_smoothness = moved / (self.damping * turned) if turned else inf
            by_growth = sqrt(1 + self.delta * self.theta) * before
            self.branches.append(1 if by_smoothness < by_growth else 2)
            base.lr = min(by_smoothness, by_growth) + self.epsilon
            self.theta = base.lr / before
        self.previous = w
        self.sizes.append(base.lr)
        if not self.ascent:
            return g
        rho = sqrt(before if self.lagging_radius else base.lr)
        return land.grad(w + rho * g / g.norm())
