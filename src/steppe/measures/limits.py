"""Limits of sharpness at small radii, from the gradient and the Hessian (A modern look, Propositions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf

from ..core.ball import Ball, refuse_no_ball, stretch_
from ..core.metric import Metric
from .curvature.measures import Eigenvalue, Trace
from .estimate import Estimate, Measure, check_finite, exact
from .objective import Objective


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

    ball: Ball = field(default_factory=Ball)

    def __post_init__(self) -> None:
        refuse_no_ball(self.ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        loss, slope = objective.gradient()
        check_finite(loss)
        slope = stretch_(slope, self.ball.scales(objective))
        p = self.ball.p
        q = inf if p == 1 else (1.0 if p == inf else p / (p - 1))
        yield exact(float(slope.norm(q)))


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

    ball: Ball = field(default_factory=Ball)
    rtol: float = 1e-3

    def __post_init__(self) -> None:
        refuse_no_ball(self.ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if self.ball.p != 2 or not isinstance(self.ball.rho, (int, float)):
            raise ValueError(
                f"the limit at critical points is an eigenvalue in l2 balls of one radius, not {self.ball}"
            )
        factor = self.ball.rho**2 / 2
        for top in Eigenvalue(rtol=self.rtol, metric=self.ball.metric).running(objective, seed):
            yield replace(top, value=max(factor * top.value, 0.0), stderr=factor * top.stderr)


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

    rho: float = 0.1
    metric: Metric | None = None
    variance: float = 1.0
    rtol: float = 0.02

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        factor = self.variance * self.rho**2 / 2
        for trace in Trace(rtol=self.rtol, metric=self.metric).running(objective, seed):
            yield replace(trace, value=factor * trace.value, stderr=factor * trace.stderr)
