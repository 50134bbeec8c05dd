"""Sharpness: growth of the loss in random directions and at SAM's point, and its limits at small radii."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Annotated

import torch

from ..core.ball import Ball, stretch_
from ..core.draw import Draw
from ..core.fields import Count, Gt, Inf, NonNegative
from ..core.metric import Metric
from ..core.triple import Law, gaussian
from ..core.vector import Vector
from .curvature.measures import Eigenvalue, Trace
from .estimate import Estimate, Measure, NotFinite, check_finite, exact, report_points, summarise
from .objective import Objective
from .registration import MAGNITUDE, PRODUCTS, register
from .worst_case import Neighbourhood


@register("loss", kind="exact", cost="1 loss", label="loss on the measured samples", does="the mean loss")
@dataclass(frozen=True)
class Loss(Measure):
    """The mean loss.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> print(steppe.measures.Loss().estimate(objective))  # the mean of 1 ** 2 and 2 ** 2
    2.5 (exact)

    """

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        yield exact(objective.loss())


@register("grad_norm", kind="exact", cost="1 gradient", label="gradient norm", does="the norm of the gradient")
@dataclass(frozen=True)
class GradientNorm(Measure):
    """The l_p norm of the gradient of the mean loss.

    Parameters
    ----------
    p
        The norm.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> print(steppe.measures.GradientNorm(p=1).estimate(objective))  # |1| + |4|
    5 (exact)

    """

    p: Annotated[float, Gt(0), Inf] = 2.0

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        loss, slope = objective.gradient()
        check_finite(loss)
        yield exact(float(slope.norm(self.p)))


def box(draw: Draw) -> Vector:
    """Uniform noise in [-1, 1]^d: the law of the average case in the l_inf ball (A modern look, 2023, Tables 1 to 4).

    Parameters
    ----------
    draw
        The random numbers, and the space of the direction.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> float(steppe.measures.box(draw).norm(float("inf"))) <= 1
    True

    """
    return draw.uniform(-1.0, 1.0)


@dataclass(frozen=True)
class AverageCase(Measure):
    """E L(w + rho T v) - L(w) with v from a symmetric law; Gaussian is A modern look, 2023, eq. 1.

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
        Pairs of draws: 50 pairs are the 100 losses of A modern look, appendix C.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> average = steppe.measures.AverageCase(rho=0.1).estimate(objective)
    >>> low, high = average.interval()
    >>> low < 0.1**2 < high  # rho ** 2 / 2 times the trace, 2
    True

    """

    rho: NonNegative = 0.1
    law: Law = gaussian
    metric: Metric | None = None
    n: Count = 50

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
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
                yield summarise(torch.tensor(draws, dtype=torch.float64), "unbiased")


@register(
    "sam_sharpness", kind="exact", cost="1 gradient and 1 loss", paper="Foret et al. 2021", label="SAM sharpness",
    does="how much one step of SAM, of radius 0.05, raises the loss",
    args=(Ball(0.05),),  # section 3.1
)  # fmt: skip
@dataclass(frozen=True)
class OneStep(Measure):
    """L(w + d) - L(w) at SAM's d, the point of the ball furthest along the gradient (Foret et al. 2021, eq. 2).

    Parameters
    ----------
    ball
        The radius, metric and norm.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> print(steppe.measures.OneStep(steppe.Ball(0.5)).estimate(objective))  # d = (0.5, 0): 0.5 + 0.5 ** 2 / 2
    0.625 (exact)

    """

    ball: Neighbourhood = field(default_factory=Ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        base, grad = objective.gradient()
        loss = objective.loss(self.ball.steepest_(grad, objective))
        if not isfinite(loss):
            raise NotFinite(f"the loss is {loss} one step of radius {self.ball.rho} away: use a smaller radius")
        yield exact(loss - base)


@register(
    "adaptive_slope_limit", kind="exact", cost="1 gradient", paper="Andriushchenko et al. 2023",
    label="adaptive first-order sharpness",
    does="adaptive worst-case sharpness over a small radius, first order: a norm of the gradient",
    args=(Ball(1.0, MAGNITUDE),),
)  # fmt: skip
@dataclass(frozen=True)
class SlopeLimit(Measure):
    """rho ||T grad L||_q: worst-case sharpness of a small ball away from critical points.

    A modern look (Andriushchenko et al. 2023), Proposition 1.

    Parameters
    ----------
    ball
        The radius rho, the metric T and the norm p with 1/p + 1/q = 1.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> float(steppe.measures.SlopeLimit(steppe.Ball(0.5, p=float("inf"))).estimate(objective))  # 0.5 (1 + 4)
    2.5

    """

    ball: Neighbourhood = field(default_factory=Ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        loss, slope = objective.gradient()
        check_finite(loss)
        slope = stretch_(slope, self.ball.scales(objective))
        p = self.ball.p
        q = inf if p == 1 else (1.0 if p == inf else p / (p - 1))
        yield exact(float(slope.norm(q)))


@register(
    "adaptive_curvature_limit", kind="lower bound", cost=PRODUCTS, paper="Andriushchenko et al. 2023",
    label="adaptive second-order sharpness",
    does="adaptive worst-case sharpness over a small squared radius at a minimum: an eigenvalue",
    args=(Ball(1.0, MAGNITUDE),),
)  # fmt: skip
@dataclass(frozen=True)
class CurvatureLimit(Measure):
    """rho^2 / 2 lambda_max(T H T): worst-case sharpness of a small l2 ball at a critical point.

    A modern look (Andriushchenko et al. 2023), Proposition 1. At a local maximum the loss does not
    grow, so a negative eigenvalue counts as 0.

    Parameters
    ----------
    ball
        An l2 ball with one radius.
    rtol
        The relative residual at which the eigenvalue search stops.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> round(float(steppe.measures.CurvatureLimit(steppe.Ball(0.5)).estimate(objective)), 4)  # 0.5 ** 2 / 2 times 4
    0.5

    """

    ball: Neighbourhood = field(default_factory=Ball)
    rtol: NonNegative = 1e-3

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if self.ball.p != 2 or not isinstance(self.ball.rho, (int, float)):
            raise ValueError(
                f"the limit at critical points is an eigenvalue in l2 balls of one radius, not {self.ball}"
            )
        factor = self.ball.rho**2 / 2
        for top in Eigenvalue(rtol=self.rtol, metric=self.ball.metric).running(objective, seed):
            yield replace(top, value=max(factor * top.value, 0.0), stderr=factor * top.stderr)


@register(
    "adaptive_average_limit", kind="plug-in", cost=PRODUCTS, paper="Andriushchenko et al. 2023",
    label="adaptive average-case limit",
    does="adaptive average-case sharpness over a small squared radius: a trace",
    args=(1.0, MAGNITUDE),
)  # fmt: skip
@dataclass(frozen=True)
class AverageLimit(Measure):
    """rho^2 / 2 tr(T H T): average-case sharpness of a small radius with Gaussian noise.

    A modern look (Andriushchenko et al. 2023), Proposition 2.

    Parameters
    ----------
    rho
        The radius.
    metric
        The scale T; None is the identity.
    variance
        Of the entries of the noise: 1 for Gaussian and sign noise, 1/3 for the box.
    rtol
        The relative standard error at which the trace estimate stops.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> round(float(steppe.measures.AverageLimit(rho=0.5).estimate(objective)), 4)  # 0.5 ** 2 / 2 times 1 + 4
    0.625

    """

    rho: NonNegative = 0.1
    metric: Metric | None = None
    variance: NonNegative = 1.0
    rtol: NonNegative = 0.02

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        factor = self.variance * self.rho**2 / 2
        for trace in Trace(rtol=self.rtol, metric=self.metric).running(objective, seed):
            yield replace(trace, value=factor * trace.value, stderr=factor * trace.stderr)
