"""Worst-case sharpness: how much the loss can grow inside a ball around the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import Any

import torch

from ..core.ball import Ball, stretch_
from ..core.probe import Probe
from ..core.vector import Vector
from .climbs import Climb, Point, PowerAscent, Terrain
from .elsewhere import undisturbed
from .estimate import Estimate, Measure, NotFinite, exact
from .objective import Objective

HEADSTART = 1  # steps of the second climb before it is compared with the first after as many looks


@dataclass(frozen=True)
class Summit:
    """The highest point that a search found: how far the loss rises there, and where it is."""

    rise: float
    gamma: Vector  # in coordinates in which the ball is round
    scale: Any  # and what maps them to displacements
    looks: int  # points seen, the centre included

    @cached_property
    def at(self) -> Vector:
        """The displacement of the weights."""
        at: Vector = self.gamma * self.scale
        return at


@dataclass(frozen=True)
class WorstCase(Measure):
    """max of L(w + d) - L(w) over the ball: what a search finds is a lower bound.

    The first climb starts at the weights, or at a random point of the boundary where the loss is level at them. The
    second starts across from where the first ended, if the loss rises on that side too, and gives up when it falls
    behind the first. Others start at random points. One forward-backward pass a step.
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
        with undisturbed(objective.model, objective.statistics):
            *_, last = self.search(objective, seed)
        return last

    def search(self, objective: Objective, seed: int = 0) -> Iterator[Summit]:
        """Higher and higher points."""
        if self.starts < 1 or self.steps < 1:
            raise ValueError(f"a search needs starts >= 1 and steps >= 1, not {self.starts} and {self.steps}")
        ones, scales = objective.space.zeros().map(torch.ones_like), self.ball.scales(objective)
        scale = stretch_(ones, scales) if len(scales) > 1 else scales[0]  # d = scale gamma
        looks = 0

        def look(gamma: Vector) -> Point:
            nonlocal looks
            looks += 1
            reading = objective.read(Probe(gamma * scale))
            if not isfinite(loss := float(reading.loss)):
                where = f"inside the ball of radius {self.ball.rho}, after {looks} points: measure in a smaller ball"
                where = where if looks > 1 else "at the weights themselves: look for the rows that it comes from"
                raise NotFinite(f"the loss is {loss} {where}, or in float64")
            return Point(gamma, loss, reading.grad.mul_(scale))

        # 1 where weights can move, 0 where they are pinned: a random start elsewhere would lead nowhere
        free = (objective.space.zeros().map(torch.ones_like) * scale).map(lambda x: (x != 0).to(x))
        centre = best = look(objective.space.zeros())
        terrain = Terrain(self.ball.unit, centre.loss, look, objective)
        first: list[float] = []  # losses along the first climb
        for i in range(self.starts):
            start = centre
            if i == 1:
                start = look(best.gamma * -1.0)
            elif i or not float(centre.slope.norm(inf)):  # level: no way leads up
                noise = objective.draw(seed, objective.number, i).normal()
                start = look(terrain.uphill(noise.mul_(free)))
            best = max(best, start, key=_loss)
            if i == 1 and start.loss <= centre.loss:
                yield Summit(best.loss - centre.loss, best.gamma, scale, looks)
                continue
            for k, point in enumerate(self.climb(start, terrain, self.steps)):
                best = max(best, point, key=_loss)
                yield Summit(best.loss - centre.loss, best.gamma, scale, looks)
                if i == 0:
                    first.append(point.loss)
                elif i == 1 and k >= HEADSTART and point.loss < first[min(k + 1, len(first) - 1)]:
                    break


def _loss(point: Point) -> float:
    return point.loss


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
