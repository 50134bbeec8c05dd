"""Worst-case sharpness: how much the loss can grow inside a ball around the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite

import torch

from ..ball import Ball, stretch_
from ..probe import Probe
from ..vector import Vector
from .climbs import Climb, Point, PowerAscent, Terrain
from .estimate import Estimate, Measure, NotFinite, exact
from .objective import Objective


@dataclass(frozen=True)
class Summit:
    """The highest point that a search found: how far the loss rises there, and the displacement of the weights."""

    rise: float
    at: Vector
    looks: int  # points seen, the centre included


@dataclass(frozen=True)
class WorstCase(Measure):
    """max of L(w + d) - L(w) over the ball: what a search finds is a lower bound.

    The first climb starts at the weights, the others at random points of the boundary; one forward-backward pass
    a step.
    """

    ball: Ball = field(default_factory=Ball)
    steps: int = 20  # of one climb at most (A modern look, section 3.3)
    starts: int = 2
    climb: Climb = field(default_factory=PowerAscent)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        before = objective.spent()
        for summit in self.search(objective, seed):
            yield Estimate(summit.rise, 0.0, 1, "lower bound", objective.spent() - before)

    def highest(self, objective: Objective, seed: int = 0) -> Summit:
        """The worst point itself."""
        *_, last = self.search(objective, seed)
        return last

    def search(self, objective: Objective, seed: int = 0) -> Iterator[Summit]:
        """Higher and higher points."""
        if self.starts < 1 or self.steps < 1:
            raise ValueError(f"a search needs starts >= 1 and steps >= 1, not {self.starts} and {self.steps}")
        scales = self.ball.scales(objective)
        looks = 0

        def look(gamma: Vector) -> Point:
            nonlocal looks
            looks += 1
            reading = objective.read(Probe(stretch_(gamma.clone(), scales)))
            if not isfinite(loss := float(reading.loss)):
                raise NotFinite(
                    f"the loss is {loss} inside the ball of radius {self.ball.rho}, after {looks} points: "
                    "measure in a smaller ball, or in float64"
                )
            return Point(gamma, loss, stretch_(reading.grad, scales))

        # 1 where weights can move, 0 where they are pinned: a random start elsewhere would lead nowhere
        free = stretch_(objective.space.zeros().map(torch.ones_like), scales).map(lambda x: (x != 0).to(x))
        centre = best = look(objective.space.zeros())
        terrain = Terrain(self.ball.unit, centre.loss, look, objective)
        for i in range(self.starts):
            start = centre
            if i:
                noise = objective.draw(seed, objective.number, i).normal()
                start = look(terrain.uphill(noise.mul_(free)))
                best = max(best, start, key=lambda point: point.loss)
            for point in self.climb(start, terrain, self.steps):
                best = max(best, point, key=lambda point: point.loss)
                yield Summit(best.loss - centre.loss, stretch_(best.gamma.clone(), scales), looks)


@dataclass(frozen=True)
class OneStep(Measure):
    """L(w + d) - L(w) at SAM's d, the point of the ball furthest along the gradient (Foret et al. 2021, eq. 2)."""

    ball: Ball = field(default_factory=Ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        before = objective.spent()
        base, grad = objective.gradient()
        there = objective.loss(self.ball.steepest_(grad, objective))
        if not isfinite(there):
            raise NotFinite(f"the loss is {there} one step of radius {self.ball.rho} away: take a smaller one")
        yield exact(there - base, cost=objective.spent() - before)
