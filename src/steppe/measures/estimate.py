"""Estimates: a number with its standard error, its kind and its cost, and how draws become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field, replace
from html import escape
from math import isfinite, nan, sqrt
from operator import add, sub
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from .._util.formats import json_safe
from .._util.numbers import compared, with_error
from .functional import measurement_mode

if TYPE_CHECKING:
    from .objective import Objective

Kind = Literal["exact", "unbiased", "plug-in", "lower bound", "upper bound"]


@dataclass(frozen=True)
class Cost:
    """Work in passes over all rows, and time; costs can be added and subtracted.

    Parameters
    ----------
    losses, gradients, products
        Forward passes, forward-backward passes, and products with the Hessian, each over all rows.
    seconds
        Wall-clock time.

    Examples
    --------
    >>> print(steppe.measures.Cost(losses=2, gradients=1) + steppe.measures.Cost(products=3))
    2 losses + 1 gradient + 3 products

    """

    losses: float = 0.0
    gradients: float = 0.0
    products: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*map(sub, astuple(self), astuple(other)))

    def __str__(self) -> str:
        counts = [("loss", "losses", self.losses), ("gradient", "gradients", self.gradients)]
        counts.append(("product", "products", self.products))
        parts = [f"{n:.4g} {one if round(n, 4) == 1 else many}" for one, many, n in counts if n]
        return " + ".join(parts) or "nothing"


@dataclass(frozen=True)
class Estimate:
    """A measured number with its error, its kind and its cost.

    Two estimates are equal if all fields except the cost are equal; nan equals nan.

    Parameters
    ----------
    value
        The number.
    stderr
        The standard error from `n` independent draws, nan if they do not determine it, 0 for an exact value. For
        a bound of an eigenvalue: the residual, the distance within which an eigenvalue lies.
    n
        The number of independent draws.
    kind
        "exact", "unbiased", "plug-in", "lower bound" or "upper bound".
    cost
        The work so far.
    note
        A remark that is printed with the number.
    complete
        False if the measurement was stopped early.

    Examples
    --------
    >>> sharpness = steppe.Estimate(0.0413, 0.0031, 8, "unbiased")
    >>> print(sharpness)
    0.0413 ± 0.0031 (unbiased, n=8)
    >>> [round(end, 4) for end in sharpness.interval()]
    [0.034, 0.0486]
    >>> float(sharpness)
    0.0413

    """

    value: float
    stderr: float
    n: int
    kind: Kind
    cost: Cost = field(default_factory=Cost, compare=False)
    note: str = ""
    complete: bool = True

    def __float__(self) -> float:
        return float(self.value)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The confidence interval at a level, by Student's t with n - 1 degrees of freedom.

        Parameters
        ----------
        level
            The probability that the interval covers the true value.

        """
        if not 0 < level < 1:
            raise ValueError(f"a confidence level is between 0 and 1 (0.95 for 95 %), not {level}")
        if self.stderr == 0 or (self.n == 1 and "bound" in self.kind):
            width = self.stderr
        elif self.n < 2:
            width = nan
        else:
            from scipy.special import stdtrit

            width = float(stdtrit(self.n - 1, 0.5 + level / 2)) * self.stderr
        return self.value - width, self.value + width

    def to_dict(self) -> dict[str, Any]:
        """All fields and the 95 % interval as values that JSON can hold: numbers that are not finite become None."""
        return dict(json_safe(asdict(self) | {"interval": self.interval()}))

    def _repr_html_(self) -> str:
        return f"<code>{escape(str(self))}</code>"

    def __eq__(self, other: object) -> bool:
        return compared(self) == compared(other) if isinstance(other, Estimate) else NotImplemented

    def __hash__(self) -> int:
        return hash(compared(self))

    def __str__(self) -> str:
        digits = with_error(self.value, self.stderr) if self.stderr > 0 else f"{self.value:.6g}"
        marks = [self.kind, *([f"n={self.n}"] if self.n > 1 else []), *([] if self.complete else ["stopped early"])]
        return f"{digits} ({', '.join(marks)}){': ' + self.note if self.note else ''}"


class NotFinite(ArithmeticError):
    """The loss is infinite or not a number at a point that the measure needs, so there is no estimate."""


def check_finite(loss: float, where: str = "at the weights themselves") -> None:
    """Raise NotFinite if a loss is infinite or not a number; its derivatives may be finite all the same."""
    if not isfinite(loss):
        raise NotFinite(f"the loss {where} is {loss}: find the rows that cause it, or measure in float64")


class Measure(Protocol):
    """A definition of sharpness: maps an objective to an estimate.

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

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        """Yield better and better estimates, without their cost; the last one is the result."""
        ...

    def estimate(self, objective: Objective, seed: int = 0) -> Estimate:
        """The number with its error and its cost; the model is not changed."""
        if isinstance(objective, nn.Module):
            raise TypeError("estimate takes an objective, not a model: write Objective(model, loss_fn, data)")
        with measurement_mode(objective.model, objective.statistics):
            return last(with_cost(self.running(objective, seed), objective))


def with_cost(estimates: Iterator[Estimate], objective: Objective) -> Iterator[Estimate]:
    """The same estimates, each with the cost so far."""
    before = objective.spent()
    for estimate in estimates:
        yield replace(estimate, cost=objective.spent() - before)


def last(estimates: Iterator[Estimate]) -> Estimate:
    """The last of the estimates that a measure yields."""
    final: Estimate | None = None
    for final in estimates:  # noqa: B007
        pass
    if final is None:
        raise RuntimeError("the measure ended without an estimate: running() must yield at least one")
    return final


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
