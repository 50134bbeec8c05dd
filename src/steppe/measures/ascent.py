"""Search rules for the highest loss in a ball, in coordinates gamma in which the ball has radius 1 and no metric.

A rule starts at a point of the unit ball with its loss and gradient, evaluates others at one forward-backward pass
each, and yields every point that it evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..core.ball import Ball
from ..core.metric import Surroundings
from ..core.vector import Vector


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
    site: Surroundings

    def uphill(self, slope: Vector) -> Vector:
        """The point of the ball that lies furthest along a gradient."""
        return self.ball.steepest(slope, self.site)

    def project(self, gamma: Vector) -> Vector:
        """The point of the ball nearest to gamma."""
        return self.ball.project(gamma, self.site)


DESCENTS = 2  # steps that decrease the loss before a power ascent switches to shorter ones
SHORT = 0.5  # first step of these, in radii


class AscentRule(Protocol):
    """Yields the points that it evaluates from a start, in at most `steps` steps."""

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]: ...


@dataclass(frozen=True)
class PowerAscent:
    """Goes to the boundary point furthest along the gradient, repeatedly (Journee et al. 2010, Algorithm 1).

    Where the loss is convex, as around a minimum, every such step increases it; there is no step size. Where full steps
    decrease the loss, Auto-PGD continues from the best point.

    Parameters
    ----------
    averaged
        Steps after the first that keep a quarter of the previous point, which leads to higher maxima.
    rtol
        The ascent ends when a step gains less than this fraction of the rise so far.

    """

    averaged: int = 8
    rtol: float = 1e-3

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        here = best = start
        descents = 0
        for k in range(steps):
            before = here
            gamma = problem.uphill(here.slope)
            if 1 <= k <= self.averaged:
                gamma.mul_(0.75).add_(here.gamma, 0.25)  # a convex combination stays in the ball
            here = problem.evaluate(gamma)
            yield here
            gain, enough = here.loss - before.loss, self.rtol * (before.loss - problem.base)
            settled = k > self.averaged
            descents += gain < 0
            best = max(best, here, key=_loss)
            if descents == DESCENTS or (settled and gain < -abs(enough)):
                yield from AutoPGD(step=SHORT)(best, problem, steps - k - 1)
                return
            if k == self.averaged:
                here = best
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

    """

    momentum: float = 0.75
    step: float = 2.0
    progress: float = 0.75

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        here = before = best = start
        step, checked = self.step, 0
        step_then = step
        climbed: list[bool] = []
        highest: list[float] = []  # of the points before each step
        checks = checkpoints(steps)
        for k in range(steps):
            z = problem.project(here.gamma.clone().add_(problem.uphill(here.slope), step))
            if k:
                a = self.momentum
                z = problem.project(z.mul_(a).add_(here.gamma, 2 - 2 * a).add_(before.gamma, a - 1))
            highest.append(best.loss)
            before, here = here, problem.evaluate(z)
            yield here
            climbed.append(here.loss > before.loss)
            best = max(best, here, key=_loss)
            if k in checks and k:
                seldom = sum(climbed[checked:k]) < self.progress * (k - checked)
                stuck = step == step_then and highest[k] == highest[checked]
                step_then, checked = step, k
                if seldom or stuck:
                    step, here = step / 2, best


@dataclass(frozen=True)
class ProjectedAscent:
    """Projected ascent with a fixed step, in radii."""

    step: float = 0.25

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        here = start
        for _ in range(steps):
            here = problem.evaluate(problem.project(here.gamma.clone().add_(problem.uphill(here.slope), self.step)))
            yield here


def checkpoints(steps: int) -> set[int]:
    """Checkpoints of Auto-PGD: ceil(p_j steps), p_1 = .22, p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06)."""
    hundredths = [0, 22]  # integers: in floats, ceil(.70 * 20) is 15
    while hundredths[-1] < 100:
        hundredths.append(hundredths[-1] + max(hundredths[-1] - hundredths[-2] - 3, 6))
    return {-(-share * steps // 100) for share in hundredths if share <= 100}


def _loss(point: Point) -> float:
    return point.loss
