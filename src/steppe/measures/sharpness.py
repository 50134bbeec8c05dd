"""Sharpness: growth of the loss in random directions and at SAM's point, and measures of other logits and data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.arguments import refuse_negative
from ..core.ball import Ball, refuse_no_ball, stretch_
from ..core.draw import Draw
from ..core.metric import Metric
from ..core.triple import Law, gaussian
from ..core.vector import Vector
from .estimate import Estimate, Measure, NotFinite, check_finite, exact, report_points, summarise
from .objective import Objective
from .own_loss import own_loss
from .precision import Precision


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
        Pairs of draws: 50 pairs are the 100 losses of A modern look, appendix H.

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

    rho: float = 0.1
    law: Law = gaussian
    metric: Metric | None = None
    n: int = 50

    def __post_init__(self) -> None:
        refuse_negative(self.rho)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if self.n < 1:
            raise ValueError(f"an average needs n >= 1 pairs of draws, not {self.n}")
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

    ball: Ball = field(default_factory=Ball)

    def __post_init__(self) -> None:
        refuse_no_ball(self.ball)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        base, grad = objective.gradient()
        loss = objective.loss(self.ball.steepest_(grad, objective))
        if not isfinite(loss):
            raise NotFinite(f"the loss is {loss} one step of radius {self.ball.rho} away: use a smaller radius")
        yield exact(loss - base)


@dataclass(frozen=True)
class NormalisedLogits:
    """A loss of logits that are divided by their standard deviation over the classes (A modern look, 2023, eq. 5).

    Parameters
    ----------
    loss_fn
        The loss of the divided logits and the target.

    Examples
    --------
    >>> loss_fn = steppe.measures.NormalisedLogits(nn.functional.cross_entropy)
    >>> logits, target = torch.tensor([[1.0, 3.0]]), torch.tensor([1])
    >>> bool(loss_fn(logits, target) == loss_fn(8 * logits, target))
    True

    """

    loss_fn: Callable[[Any, Any], Tensor]

    def __call__(self, logits: Tensor, target: Any) -> Tensor:
        if self.loss_fn is own_loss:
            raise TypeError("normalised logits need a loss of logits: pass loss_fn, such as cross-entropy, not None")
        return self.loss_fn(logits / logits.std(-1, correction=0, keepdim=True), target)


@dataclass(frozen=True)
class OnNormalisedLogits(Measure):
    """A measure of the loss of normalised logits, which does not depend on the scale of the last layer.

    Parameters
    ----------
    measure
        Of the objective with `NormalisedLogits`.

    Examples
    --------
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> objective = steppe.Objective(model, nn.functional.cross_entropy, (torch.eye(2), torch.arange(2)))

    >>> loss = steppe.measures.OnNormalisedLogits(steppe.measures.Loss())
    >>> round(float(loss.estimate(objective)), 4)  # log(1 + exp(-2)), because (1, 0) becomes (2, 0)
    0.1269

    """

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        return self.measure.running(replace(objective, loss_fn=NormalisedLogits(objective.loss_fn)), seed)


Rows = Literal["train", "validation", "test", "corrupted", "augmented"]


@dataclass(frozen=True)
class OnData(Measure):
    """A measure on other rows, in other batches or in another precision than the objective that it is measured with.

    Alone it changes batches and precision. `rows` and `count` need the data of a run: `measure_objective` takes them
    from its argument `on`.

    Parameters
    ----------
    measure
        The measure.
    rows
        "train", "validation" and "test" rows; "corrupted": test rows under the run's corruptions; "augmented": training
        rows under the run's augmentations, drawn once. None: those of the objective.
    count
        The number of rows.
    m
        Rows per batch.
    precision
        Of the passes.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> m_sharpness = steppe.measures.PerBatch(steppe.measures.OneStep(steppe.Ball(0.5)))
    >>> estimate = steppe.measures.OnData(m_sharpness, m=1).estimate(objective)  # batches of one row
    >>> round(estimate.value, 4), estimate.n  # the mean of 1.5 ** 2 - 1 and 3 ** 2 - 4
    (3.125, 2)

    """

    measure: Measure
    rows: Rows | None = None
    count: int | None = None
    m: int | None = None
    precision: Precision | None = None

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        return self.measure.running(self.applied(objective), seed)

    def applied(self, objective: Objective) -> Objective:
        """The objective in batches of m rows and in this precision; raise ValueError for other rows."""
        if self.rows is not None or self.count is not None:
            raise ValueError(
                "rows= and count= choose among the rows of a run, as in `steppe measure`, `train` and studies: pass "
                "the rows to measure on as data"
            )
        if self.m is not None and objective.group is not None:
            raise ValueError("m= regroups the batches of one process: pass share(data, group, m) as data")
        return replace(objective, m=self.m or objective.m, precision=self.precision or objective.precision)


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

    p: float = 2.0

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        loss, slope = objective.gradient()
        check_finite(loss)
        yield exact(float(slope.norm(self.p)))


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
