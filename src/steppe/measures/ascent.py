"""x"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..core.ball import Ball
from ..core.metric import Surroundings
from ..core.vector import Vector


@dataclass(frozen=True)
class Point:
    """A point of the unit ball, the loss there and its gradient in gamma."""

    gamma: Vector
    loss: float
    slope: Vector


Look = Callable[[Vector], Point]


@dataclass(frozen=True)
class AscentProblem:
    """Where a climb takes place: the unit ball, the loss at its centre, and a way to look at a point."""

    ball: Ball
    base: float
    look: Look
    site: Surroundings

    def uphill(self, slope: Vector) -> Vector:
        """The point of the ball that lies furthest along a slope."""
        return self.ball.steepest(slope, self.site)

    def project(self, gamma: Vector) -> Vector:
        """The point of the ball nearest to gamma."""
        return self.ball.project(gamma, self.site)


DESCENTS = 2  # steps that led down while points are averaged, after which a climb tries shorter ones
SHORT = 0.5  # radii: how short


class AscentRule(Protocol):
    """A rule for where to look next."""

    def __call__(self, start: Point, terrain: AscentProblem, steps: int) -> Iterator[Point]: ...


@dataclass(frozen=True)
class PowerAscent:
    """Goes to the boundary point furthest along the slope, again and again (Journee et al. 2010, Algorithm 1).

    Where the loss is convex, as around a minimum, every such step climbs; it needs no step size. After the first,
    `averaged` steps keep a quarter of the point before, which leads to higher maxima; it ends when a step gains
    less than `rtol` of the climb so far. Where full steps lead down, it goes on with Auto-PGD from the best point.
    """

    averaged: int = 8
    rtol: float = 1e-3

    def __call__(self, start: Point, terrain: AscentProblem, steps: int) -> Iterator[Point]:
        here = best = start
        descents = 0
        for k in range(steps):
            before = here
            gamma = terrain.uphill(here.slope)
            if 1 <= k <= self.averaged:
                gamma.mul_(0.75).add_(here.gamma, 0.25)  # convex: stays in the ball
            here = terrain.look(gamma)
            yield here
            gain, enough = here.loss - before.loss, self.rtol * (before.loss - terrain.base)
            settled = k > self.averaged
            descents += gain < 0
            best = max(best, here, key=_loss)
            if descents == DESCENTS or (settled and gain < -abs(enough)):
                yield from AutoPGD(step=SHORT)(best, terrain, steps - k - 1)
                return
            if k == self.averaged:
                here = best
            elif settled and gain <= enough:
                return


@dataclass(frozen=True)
class AutoPGD:
    """Projected ascent with momentum that halves its step when progress stalls (Croce & Hein 2020, Algorithm 1)."""

    momentum: float = 0.75  # Croce & Hein 2020, section 4.1, like the numbers below
    step: float = 2.0  # in radii
    progress: float = 0.75

    def __call__(self, start: Point, terrain: AscentProblem, steps: int) -> Iterator[Point]:
        here = before = best = start
        step, checked = self.step, 0
        step_then = step
        climbed: list[bool] = []
        highest: list[float] = []  # of the points before each step
        checks = checkpoints(steps)
        for k in range(steps):
            z = terrain.project(here.gamma.clone().add_(terrain.uphill(here.slope), step))
            if k:
                a = self.momentum
                z = terrain.project(z.mul_(a).add_(here.gamma, 2 - 2 * a).add_(before.gamma, a - 1))
            highest.append(best.loss)
            before, here = here, terrain.look(z)
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
    """Plain projected ascent with a fixed step, in radii."""

    step: float = 0.25

    def __call__(self, start: Point, terrain: AscentProblem, steps: int) -> Iterator[Point]:
        here = start
        for _ in range(steps):
            here = terrain.look(terrain.project(here.gamma.clone().add_(terrain.uphill(here.slope), self.step)))
            yield here


def checkpoints(steps: int) -> set[int]:
    """Where Auto-PGD looks back: ceil(p_j steps), p_1 = .22, p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06)."""
    hundredths = [0, 22]  # integers: in floats .70 of 20 comes out as 15
    while hundredths[-1] < 100:
        hundredths.append(hundredths[-1] + max(hundredths[-1] - hundredths[-2] - 3, 6))
    return {-(-share * steps // 100) for share in hundredths if share <= 100}


def _loss(point: Point) -> float:
    return point.loss
