"""Ascent rules: searches for a high loss in the unit ball.

A rule starts at a point with its loss and gradient, evaluates others at one forward-backward pass each, and yields
every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
            best = max(best, point, key=loss_of)
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
            best = max(best, point, key=loss_of)
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


def loss_of(point: Point) -> float:
    return point.loss
