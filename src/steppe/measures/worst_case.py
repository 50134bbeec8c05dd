"""Worst-case sharpness: searches for the highest loss in a ball.

Searches use coordinates gamma in which the ball has radius 1 and no metric.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import Any, Literal, get_args

import torch
from scipy.special import gammainc

from ..core.ball import Ball, refuse_no_ball, stretch_
from ..core.draw import Draw
from ..core.probe import Probe
from ..core.vector import Vector
from .ascent import AscentProblem, AscentRule, Point, PowerAscent, loss_of
from .estimate import Estimate, Measure, NotFinite
from .functional import measurement_mode
from .objective import Objective

Start = Literal["zero", "uniform"]
HEADSTART = 1  # steps of the second ascent before it is compared with the first at equal evaluations


@dataclass(frozen=True)
class Summit:
    """The highest point of a search.

    Parameters
    ----------
    rise
        The loss there minus the loss at the weights.
    gamma
        The point, in coordinates in which the ball has radius 1 and no metric.
    scale
        Maps these coordinates to displacements.
    looks
        The number of points evaluated, the centre included.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> summit = steppe.measures.WorstCase(steppe.Ball(0.5)).highest(objective)
    >>> round(summit.rise, 4), round(float(summit.at.norm()), 4)  # 0.5 + 0.5 ** 2 / 2, on the boundary
    (0.625, 0.5)

    """

    rise: float
    gamma: Vector
    scale: Any
    looks: int

    @cached_property
    def at(self) -> Vector:
        """The displacement of the weights."""
        at: Vector = self.gamma * self.scale
        return at


@dataclass(frozen=True)
class WorstCase(Measure):
    """max of L(w + d) - L(w) over a ball; the highest point of a search is a lower bound.

    With start="zero" the first ascent starts at the weights, or at a random point of the boundary if the gradient is
    zero there. The second starts opposite to where the first ended, if the loss is higher there than at the weights,
    and stops when it falls behind the first. Further ones start at random points of the boundary. A step costs one
    forward-backward pass.

    Parameters
    ----------
    ball
        The radius, metric and norm.
    steps
        The maximum number of steps per ascent (20: A modern look, 2023, section 3.3).
    starts
        The number of ascents.
    climb
        `PowerAscent()`, `AutoPGD()` or `ProjectedAscent()`.
    start
        "zero", or "uniform": every ascent starts at a uniformly random point of the ball (A modern look, appendix C).

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)

    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> worst = steppe.measures.WorstCase(steppe.Ball(0.5)).estimate(objective)
    >>> f"{worst.value:.3f}", worst.kind  # 0.5 |g| + 0.5 ** 2 / 2
    ('0.832', 'lower bound')

    """

    ball: Ball = field(default_factory=Ball)
    steps: int = 20
    starts: int = 2
    climb: AscentRule = field(default_factory=PowerAscent)
    start: Start = "zero"

    def __post_init__(self) -> None:
        refuse_no_ball(self.ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        for summit in self.search(objective, seed):
            yield Estimate(summit.rise, 0.0, 1, "lower bound")

    def highest(self, objective: Objective, seed: int = 0) -> Summit:
        """The worst point, with its displacement."""
        with measurement_mode(objective.model, objective.statistics):
            *_, last = self.search(objective, seed)
        return last

    def search(self, objective: Objective, seed: int = 0) -> Iterator[Summit]:
        """Yield higher and higher points."""
        if self.starts < 1 or self.steps < 1:
            raise ValueError(f"a search needs starts >= 1 and steps >= 1, not {self.starts} and {self.steps}")
        ones, scales = objective.space.zeros().map(torch.ones_like), self.ball.scales(objective)
        scale = stretch_(ones, scales) if len(scales) > 1 else scales[0]  # displacement = scale * gamma
        looks = 0

        def evaluate(gamma: Vector) -> Point:
            nonlocal looks
            looks += 1
            reading = objective.read(Probe(gamma * scale))
            if not isfinite(loss := float(reading.loss)):
                where = f"inside the ball of radius {self.ball.rho}, after {looks} points: measure in a smaller ball"
                where = (
                    where
                    if looks > 1
                    else "at the weights themselves: find the rows that cause it, and measure without them"
                )
                raise NotFinite(f"the loss is {loss} {where}, or in float64")
            return Point(gamma, loss, reading.grad.mul_(scale))

        # 1 where weights can move, 0 where the scale is 0: a random start must differ from the centre
        free = (objective.space.zeros().map(torch.ones_like) * scale).map(lambda x: (x != 0).to(x))
        centre = best = evaluate(objective.space.zeros())
        problem = AscentProblem(self.ball.unit, centre.loss, evaluate, objective)
        first: list[float] = []  # losses along the first ascent
        if self.start not in get_args(Start):
            raise ValueError(f"start is one of {get_args(Start)}, not {self.start!r}")
        for i in range(self.starts):
            start, paired = centre, self.start == "zero" and i == 1
            if self.start == "uniform":
                start = evaluate(_uniform_in_unit_ball(objective.draw(seed, objective.number, i), self.ball.p, free))
            elif i == 1:
                start = evaluate(best.gamma * -1.0)
            elif i or not float(centre.slope.norm(inf)):  # no gradient to follow
                noise = objective.draw(seed, objective.number, i).normal()
                start = evaluate(problem.uphill(noise.mul_(free)))
            best = max(best, start, key=loss_of)
            if paired and start.loss <= centre.loss:
                yield Summit(best.loss - centre.loss, best.gamma, scale, looks)
                continue
            for k, point in enumerate(self.climb(start, problem, self.steps)):
                best = max(best, point, key=loss_of)
                yield Summit(best.loss - centre.loss, best.gamma, scale, looks)
                if i == 0:
                    first.append(point.loss)
                elif paired and k >= HEADSTART and point.loss < first[min(k + 1, len(first) - 1)]:
                    break


def _uniform_in_unit_ball(draw: Draw, p: float, free: Vector) -> Vector:
    """A uniformly random point of the unit l_p ball in the free coordinates: those where `free` is 1."""
    if p == inf:
        return draw.uniform(-1.0, 1.0).mul_(free)
    if p != 2:
        raise ValueError(f"uniform starts are drawn in l2 and l_inf balls, not in p = {p:g}: use start zero")
    point = draw.normal().mul_(free)
    dimension = float(free.norm(1))
    # of a standard Gaussian the direction is uniform, and chi^2 gives the radius: P(|x| <= r) = r^dimension
    length = float(point.norm())
    share = float(gammainc(dimension / 2, length**2 / 2))
    return point.mul_(share ** (1 / dimension) / length if length else 0.0)
