"""Worst-case sharpness: searches for the highest loss in a ball.

Searches use coordinates gamma in which the ball has radius 1 and no metric. An ascent rule starts at a point with its
loss and gradient, evaluates others at one forward-backward pass each, and yields every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from operator import attrgetter
from typing import Annotated, Any, Literal

import torch
from scipy.special import gammainc

from ..core.ball import Ball, check_ball, stretch_
from ..core.draw import Draw
from ..core.fields import Count
from ..core.metric import Surroundings
from ..core.probe import Probe
from ..core.vector import Vector
from .estimate import Estimate, Measure, NotFinite, check_finite
from .objective import Objective
from .session import session

Start = Literal["zero", "uniform"]
Neighbourhood = Annotated[Ball, check_ball]
HEADSTART = 1  # steps of the second ascent before it is compared with the first at equal evaluations
DESCENTS = 2  # steps that decrease the loss before a power ascent switches to shorter ones
SHORT = 0.5  # first step of these, in radii

by_loss = attrgetter("loss")


@dataclass(frozen=True)
class Point:
    """A point of the unit ball, its loss, and the gradient in gamma."""

    gamma: Vector
    loss: float
    slope: Vector


@dataclass(frozen=True)
class AscentProblem:
    """The unit ball, the loss at its centre, and a function that evaluates a point."""

    ball: Ball
    base: float
    evaluate: Callable[[Vector], Point]
    context: Surroundings

    def uphill(self, slope: Vector) -> Vector:
        """The point of the ball that lies furthest along a gradient."""
        return self.ball.steepest(slope, self.context)

    def project(self, gamma: Vector) -> Vector:
        """The point of the ball nearest to gamma."""
        return self.ball.project(gamma, self.context)


# (start, problem, steps): yields the points that it evaluates from a start, in at most `steps` steps
AscentRule = Callable[[Point, AscentProblem, int], Iterator[Point]]


@dataclass(frozen=True)
class PowerAscent:
    """Moves to the boundary point furthest along the gradient, repeatedly (Journee et al. 2010, Algorithm 1).

    Where the loss is convex, as around a minimum, every such step increases it; there is no step size. Where full steps
    decrease the loss, Auto-PGD continues from the best point.

    Parameters
    ----------
    averaged
        Steps after the first that keep a quarter of the previous point, which leads to higher maxima.
    rtol
        The ascent ends when a step gains less than this fraction of the rise so far.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> worst = steppe.measures.WorstCase(steppe.Ball(0.5), climb=steppe.measures.PowerAscent()).estimate(objective)
    >>> f"{worst.value:.3f}"  # 0.5 |g| + 0.5 ** 2 / 2
    '0.832'

    """

    averaged: int = 8
    rtol: float = 1e-3

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        point = best = start
        descents = 0
        for k in range(steps):
            before = point
            gamma = problem.uphill(point.slope)
            if 1 <= k <= self.averaged:
                gamma.mul_(0.75).add_(point.gamma, 0.25)  # a convex combination stays in the ball
            point = problem.evaluate(gamma)
            yield point
            gain, enough = point.loss - before.loss, self.rtol * (before.loss - problem.base)
            settled = k > self.averaged
            descents += gain < 0
            best = max(best, point, key=by_loss)
            if descents == DESCENTS or (settled and gain < -abs(enough)):
                yield from AutoPGD(step=SHORT)(best, problem, steps - k - 1)
                return
            if k == self.averaged:
                point = best
            elif settled and gain <= enough:
                return


@dataclass(frozen=True)
class AutoPGD:
    """Projected ascent with momentum that halves its step when progress stalls (Croce & Hein 2020, Algorithm 1).

    The defaults are those of their section 4.1.

    Parameters
    ----------
    momentum
        Weight of the new step against the last move.
    step
        The first step, in radii.
    progress
        The step is halved if a smaller fraction of steps since the last checkpoint increased the loss.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> worst = steppe.measures.WorstCase(steppe.Ball(0.5), climb=steppe.measures.AutoPGD()).estimate(objective)
    >>> f"{worst.value:.3f}"  # 0.5 |g| + 0.5 ** 2 / 2
    '0.832'

    """

    momentum: float = 0.75
    step: float = 2.0
    progress: float = 0.75

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        point = before = best = start
        step, checked = self.step, 0
        step_then = step
        climbed: list[bool] = []
        highest: list[float] = []  # of the points before each step
        checks = checkpoints(steps)
        for k in range(steps):
            z = problem.project(point.gamma.clone().add_(problem.uphill(point.slope), step))
            if k:
                a = self.momentum
                z = problem.project(z.mul_(a).add_(point.gamma, 2 - 2 * a).add_(before.gamma, a - 1))
            highest.append(best.loss)
            before, point = point, problem.evaluate(z)
            yield point
            climbed.append(point.loss > before.loss)
            best = max(best, point, key=by_loss)
            if k in checks and k:
                seldom = sum(climbed[checked:k]) < self.progress * (k - checked)
                stuck = step == step_then and highest[k] == highest[checked]
                step_then, checked = step, k
                if seldom or stuck:
                    step, point = step / 2, best


@dataclass(frozen=True)
class ProjectedAscent:
    """Projected ascent with a fixed step.

    Parameters
    ----------
    step
        In radii.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> worst = steppe.measures.WorstCase(steppe.Ball(0.5), steps=8, climb=steppe.measures.ProjectedAscent())
    >>> f"{worst.estimate(objective).value:.3f}"  # 0.5 |g| + 0.5 ** 2 / 2
    '0.832'

    """

    step: float = 0.25

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        point = start
        for _ in range(steps):
            point = problem.evaluate(problem.project(point.gamma.clone().add_(problem.uphill(point.slope), self.step)))
            yield point


def checkpoints(steps: int) -> set[int]:
    """Checkpoints of Auto-PGD: ceil(p_j steps), p_1 = .22, p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06)."""
    hundredths = [0, 22]  # integers: in floats, ceil(.70 * 20) is 15
    while hundredths[-1] < 100:
        hundredths.append(hundredths[-1] + max(hundredths[-1] - hundredths[-2] - 3, 6))
    return {-(-share * steps // 100) for share in hundredths if share <= 100}


@dataclass(frozen=True)
class AscentResult:
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

    ball: Neighbourhood = field(default_factory=Ball)
    steps: Count = 20
    starts: Count = 2
    climb: AscentRule = field(default_factory=PowerAscent)
    start: Start = "zero"

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        for summit in self.search(objective, seed):
            yield Estimate(summit.rise, 0.0, 1, "lower bound")

    def highest(self, objective: Objective, seed: int = 0) -> AscentResult:
        """The worst point, with its displacement."""
        with session(objective.model, objective.statistics):
            *_, last = self.search(objective, seed)
        return last

    def search(self, objective: Objective, seed: int = 0) -> Iterator[AscentResult]:
        """Yield higher and higher points."""
        ones, scales = objective.space.zeros().map(torch.ones_like), self.ball.scales(objective)
        scale = stretch_(ones.clone(), scales) if len(scales) > 1 else scales[0]  # displacement = scale * gamma
        # 1 where weights can move, 0 where the scale is 0: a random start must differ from the centre
        free = (ones * scale).map(lambda x: (x != 0).to(x))
        looks = 0

        def evaluate(gamma: Vector) -> Point:
            nonlocal looks
            looks += 1
            reading = objective.read(Probe(gamma * scale))
            loss = float(reading.loss)
            if looks == 1:
                check_finite(loss)
            elif not isfinite(loss):
                where = f"inside the ball of radius {self.ball.rho}, after {looks} points"
                raise NotFinite(f"the loss is {loss} {where}: measure in a smaller ball, or in float64")
            return Point(gamma, loss, reading.grad.mul_(scale))

        centre = best = evaluate(objective.space.zeros())
        problem = AscentProblem(self.ball.unit, centre.loss, evaluate, objective)
        first: list[float] = []  # losses along the first ascent
        for i in range(self.starts):
            start, paired = centre, self.start == "zero" and i == 1
            if self.start == "uniform":
                start = evaluate(_uniform_in_unit_ball(objective.draw(seed, objective.number, i), self.ball.p, free))
            elif i == 1:
                start = evaluate(best.gamma * -1.0)
            elif i or not float(centre.slope.norm(inf)):  # no gradient to follow
                noise = objective.draw(seed, objective.number, i).normal()
                start = evaluate(problem.uphill(noise.mul_(free)))
            best = max(best, start, key=by_loss)
            if paired and start.loss <= centre.loss:
                yield AscentResult(best.loss - centre.loss, best.gamma, scale, looks)
                continue
            for k, point in enumerate(self.climb(start, problem, self.steps)):
                best = max(best, point, key=by_loss)
                yield AscentResult(best.loss - centre.loss, best.gamma, scale, looks)
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
