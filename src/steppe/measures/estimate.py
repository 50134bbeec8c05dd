"""How draws become an estimate, and the protocol of measures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from ..core.estimate import Cost, Estimate, Kind
from ..core.fields import check_fields
from .session import session

if TYPE_CHECKING:
    from .objective import Objective

__all__ = [
    "Cost", "Estimate", "Kind", "Measure", "NotFinite", "check_finite", "exact", "last", "mean", "report_points",
    "summarise", "weighted", "with_cost",
]  # fmt: skip


class NotFinite(ArithmeticError):
    """The loss is infinite or not a number at a point that the measure needs, so there is no estimate."""


def check_finite(loss: float, where: str = "at the weights themselves") -> None:
    """Raise NotFinite if a loss is infinite or not a number; its derivatives may be finite all the same."""
    if not isfinite(loss):
        raise NotFinite(f"the loss {where} is {loss}: find the rows that cause it, or measure in float64")


class Measure(Protocol):
    """A definition of sharpness: maps an objective to an estimate.

    The fields of a measure that is a dataclass are checked against their annotations, as those of a method are.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)
    >>> class WeightNorm(steppe.Measure):
    ...     def running(self, objective, seed=0):
    ...         yield steppe.Estimate(float(objective.weights.norm(1)), 0.0, 1, "exact")
    >>> print(WeightNorm().estimate(objective))
    2 (exact)

    """

    def __post_init__(self) -> None:
        check_fields(self, tensors=True)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        """Yield better and better estimates, without their cost; the last one is the result."""
        ...

    def estimate(self, objective: Objective, seed: int = 0) -> Estimate:
        """The number with its error and its cost; the model is not changed."""
        if isinstance(objective, nn.Module):
            raise TypeError("estimate takes an objective, not a model: write Objective(model, loss_fn, data)")
        with session(objective.model, objective.statistics):
            before = objective.spent()
            found = last(self.running(objective, seed))
            return replace(found, cost=objective.spent() - before)


def with_cost(estimates: Iterator[Estimate], objective: Objective) -> Iterator[Estimate]:
    """The same estimates, one or more, each with the cost so far."""
    before, estimate = objective.spent(), None
    for estimate in estimates:
        yield replace(estimate, cost=objective.spent() - before)
    if estimate is None:
        raise RuntimeError("the measure ended without an estimate: running() must yield at least one")


def last(estimates: Iterator[Estimate]) -> Estimate:
    """The last of the estimates that a measure yields."""
    kept = deque(estimates, maxlen=1)
    if not kept:
        raise RuntimeError("the measure ended without an estimate: running() must yield at least one")
    return kept.pop()


def mean(draws: Tensor) -> Tensor:
    """The sample mean over the first dimension, the default statistic of `summarise`."""
    return draws.mean(0)


def summarise(
    draws: Tensor,
    kind: Kind,
    statistic: Callable[[Tensor], Tensor] = mean,
    *,
    without_each: Callable[[Tensor], Tensor] | None = None,
    note: str = "",
) -> Estimate:
    """A statistic of independent draws (rows of a tensor), with its jackknife standard error.

    For the mean this is the usual standard error; for a smooth function of means it agrees with the delta method.

    Parameters
    ----------
    draws, kind, note
        The draws, and the fields of the estimate.
    statistic
        Maps draws to a number.
    without_each
        Maps draws to the statistics without the first draw, without the second and so on, in linear time. None calls
        `statistic` once per draw, which takes quadratic time.

    """
    draws = draws.detach().double().cpu()
    n = len(draws)
    if not bool(torch.isfinite(draws).all()):
        raise NotFinite(f"{int((~torch.isfinite(draws)).sum())} of {draws.numel()} draws are infinite or not a number")
    value = float(statistic(draws))
    if n < 2:
        stderr = nan
    elif statistic is mean:
        stderr = float(draws.std(0)) / sqrt(n)
    else:
        try:
            without = without_each(draws) if without_each else _without_each(draws, statistic)
            stderr = float(((n - 1) * without.var(0, correction=0)).sqrt())
        except ValueError:  # the statistic needs all draws
            stderr = nan
    if not isfinite(value):
        raise NotFinite(f"the statistic of {n} finite draws is {value}")
    return Estimate(value, stderr, n, kind, note=note)


def _without_each(draws: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.stack([statistic(torch.cat([draws[:i], draws[i + 1 :]])) for i in range(len(draws))])


def weighted(values: Tensor, weights: Tensor, kind: Kind, *, note: str = "") -> Estimate:
    """The weighted mean of independent draws; draws of weight 0 are left out."""
    values, weights = values[weights > 0], weights[weights > 0]
    if not len(values) or bool((weights == weights[0]).all()):
        return summarise(values, kind, note=note)

    def ratio(draws: Tensor) -> Tensor:
        return draws[:, 0].sum() / draws[:, 1].sum()

    def ratios_without_each(draws: Tensor) -> Tensor:
        rest = draws.sum(0) - draws
        return rest[:, 0] / rest[:, 1]

    draws = torch.stack([values * weights, weights], 1)
    return summarise(draws, kind, ratio, without_each=ratios_without_each, note=note)


def report_points(n: int, every: int = 10) -> Iterator[int]:
    """The numbers of draws, up to n, after which to yield an estimate: after `every` more, or a tenth more.

    An estimate takes time in proportion to its draws, so equal distances would take quadratic time.
    """
    due = 0
    while due < n:
        due = min(n, max(due + every, -(-due * 11 // (10 * every)) * every))
        yield due


def exact(value: float, *, note: str = "") -> Estimate:
    """An estimate without error."""
    if not isfinite(value):
        raise NotFinite(f"the value is {value}")
    return Estimate(value, 0.0, 1, "exact", note=note)
