"""Sharpness: the growth of the loss in random directions, at the worst point of a ball, and at SAM's point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, get_args

import torch
from torch import Tensor

from ..core.ball import Ball, refuse_negative, stretch_
from ..core.draw import Draw
from ..core.metric import Metric
from ..core.probe import Probe
from ..core.triple import Law, gaussian
from ..core.vector import Vector
from .ascent import AscentProblem, AscentRule, Point, PowerAscent
from .estimate import Cost, Estimate, Kind, Measure, NotFinite, exact, report_points, summarise, weighted
from .functional import measurement_mode
from .objective import Objective


def box(draw: Draw) -> Vector:
    """Uniform noise in [-1, 1]^d: the law of the average case in the l_inf ball (A modern look, Tables 1 to 4)."""
    return draw.uniform(-1.0, 1.0)


@dataclass(frozen=True)
class AverageCase(Measure):
    """E L(w + rho T v) - L(w) with v from a symmetric law; Gaussian is A modern look, eq. 1.

    Every draw is paired with its mirror image, which cancels all odd orders of the loss and most of the noise.

    Parameters
    ----------
    rho
        The radius.
    law
        Of v: `gaussian`, `box`, `rademacher` or another symmetric law.
    metric
        The scale T; None is the identity.
    n
        Pairs of draws: 50 pairs are the 100 losses of A modern look, appendix H.

    """

    rho: float = 0.1
    law: Law = gaussian
    metric: Metric | None = None
    n: int = 50

    def __post_init__(self) -> None:
        refuse_negative(self.rho)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if self.n < 1:
            raise ValueError(f"an average needs n >= 1 pairs of draws, not {self.n}")
        before = objective.spent()
        scales = Ball(self.rho, self.metric).scales(objective)
        base = objective.loss()
        draws: list[float] = []
        due = set(report_points(self.n))
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


HEADSTART = 1  # steps of the second ascent before it is compared with the first after as many evaluations


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
        Points evaluated, the centre included.

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

    The first ascent starts at the weights, or at a random point of the boundary if the gradient is zero there. The
    second starts opposite to where the first ended, if the loss is higher there than at the weights, and stops when it
    falls behind the first. Further ones start at random points. A step costs one forward-backward pass.

    Parameters
    ----------
    ball
        The radius, metric and norm.
    steps
        At most, per ascent (20: A modern look, section 3.3).
    starts
        The number of ascents.
    climb
        `PowerAscent()`, `AutoPGD()` or `ProjectedAscent()`.

    """

    ball: Ball = field(default_factory=Ball)
    steps: int = 20
    starts: int = 2
    climb: AscentRule = field(default_factory=PowerAscent)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        before = objective.spent()
        for summit in self.search(objective, seed):
            yield Estimate(summit.rise, 0.0, 1, "lower bound", objective.spent() - before)

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
                where = where if looks > 1 else "at the weights themselves: look for the rows that it comes from"
                raise NotFinite(f"the loss is {loss} {where}, or in float64")
            return Point(gamma, loss, reading.grad.mul_(scale))

        # 1 where weights can move, 0 where the scale is 0: a random start must differ from the centre
        free = (objective.space.zeros().map(torch.ones_like) * scale).map(lambda x: (x != 0).to(x))
        centre = best = evaluate(objective.space.zeros())
        problem = AscentProblem(self.ball.unit, centre.loss, evaluate, objective)
        first: list[float] = []  # losses along the first ascent
        for i in range(self.starts):
            start = centre
            if i == 1:
                start = evaluate(best.gamma * -1.0)
            elif i or not float(centre.slope.norm(inf)):  # no gradient to follow
                noise = objective.draw(seed, objective.number, i).normal()
                start = evaluate(problem.uphill(noise.mul_(free)))
            best = max(best, start, key=_loss)
            if i == 1 and start.loss <= centre.loss:
                yield Summit(best.loss - centre.loss, best.gamma, scale, looks)
                continue
            for k, point in enumerate(self.climb(start, problem, self.steps)):
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
        loss = objective.loss(self.ball.steepest_(grad, objective))
        if not isfinite(loss):
            raise NotFinite(f"the loss is {loss} one step of radius {self.ball.rho} away: take a smaller one")
        yield exact(loss - base, cost=objective.spent() - before)


KINDS: tuple[Kind, ...] = get_args(Kind)  # from the strongest to the weakest


@dataclass(frozen=True)
class PerBatch(Measure):
    """m-sharpness: the mean of a measure over single batches, weighted as in the objective.

    The batches are the draws: the error is that of a sample of batches. Each worker measures its own batches.

    Parameters
    ----------
    measure
        Of one batch.

    """

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        before = objective.spent()
        rows: list[tuple[int, list[float]]] = []
        error: Exception | None = None
        try:
            for number, batch in objective.each():
                part = self.measure.estimate(batch, seed)
                rows.append((number, [part.value, batch.batch_weights[0], float(KINDS.index(part.kind))]))
                if objective.group is None:
                    yield _mean_of(rows, objective.spent() - before)
        except Exception as raised:
            error = raised
        objective.workers.raise_on_all(error)
        if objective.group is not None:
            yield _mean_of(objective.workers.all_gather(rows), objective.spent() - before)

    def parts(self, objective: Objective, seed: int = 0) -> list[tuple[int, Estimate]]:
        """The estimate of every batch that this worker holds, with the batch's number."""
        return [(number, self.measure.estimate(batch, seed)) for number, batch in objective.each()]


def _mean_of(rows: Sequence[tuple[int, list[float]]], cost: Cost) -> Estimate:
    draws = torch.tensor([row for _, row in rows], dtype=torch.float64)
    kind = KINDS[int(draws[:, 2].max())]  # the weakest kind of its parts
    return weighted(draws[:, 0], draws[:, 1], kind, cost=cost)


@dataclass(frozen=True)
class NormalisedLogits:
    """A loss of logits that are divided by their standard deviation over the classes (A modern look, eq. 5)."""

    loss_fn: Callable[[Any, Any], Tensor]

    def __call__(self, logits: Tensor, target: Any) -> Tensor:
        return self.loss_fn(logits / logits.std(-1, correction=0, keepdim=True), target)


@dataclass(frozen=True)
class OnNormalisedLogits(Measure):
    """A measure of the loss of normalised logits, which does not depend on the scale of the last layer."""

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        return self.measure.running(replace(objective, loss_fn=NormalisedLogits(objective.loss_fn)), seed)
