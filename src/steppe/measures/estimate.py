"""A number that knows its error, its kind and its cost; the one place where draws become a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from math import isfinite, isnan, nan, sqrt
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from .elsewhere import undisturbed

if TYPE_CHECKING:
    from .objective import Objective

Kind = Literal["exact", "unbiased", "plug-in", "lower bound", "upper bound"]


@dataclass(frozen=True)
class Cost:
    """Work in passes over all rows: losses (forward only), gradients, products with a Hessian; and wall-clock time."""

    losses: float = 0.0
    gradients: float = 0.0
    products: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.losses + other.losses,
            self.gradients + other.gradients,
            self.products + other.products,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: Cost) -> Cost:
        return self + Cost(-other.losses, -other.gradients, -other.products, -other.seconds)

    def __str__(self) -> str:
        counts = {"loss": self.losses, "gradient": self.gradients, "product": self.products}
        plural = {"loss": "losses", "gradient": "gradients", "product": "products"}
        parts = [f"{n:.4g} {word if round(n, 4) == 1 else plural[word]}" for word, n in counts.items() if n]
        return " + ".join(parts) or "nothing"


@dataclass
class Meter:
    """Counts the rows that an objective and its parts have worked on so far."""

    losses: float = 0.0
    gradients: float = 0.0
    products: float = 0.0

    def passes(self, rows: int) -> Cost:
        """The work in passes over that many rows, and the time."""
        return Cost(self.losses / rows, self.gradients / rows, self.products / rows, perf_counter())


@dataclass(frozen=True)
class Estimate:
    """A measured number: `stderr` comes from `n` independent draws and is nan if they cannot tell.

    An exact value has stderr 0. A bound of an eigenvalue has in its place the distance within which the
    eigenvalue lies, from the residual. `complete` is False where the measurement was stopped early. Two estimates are
    equal if all fields except the cost are; nan equals nan, so that an estimate without an error equals itself.
    """

    value: float
    stderr: float
    n: int
    kind: Kind
    cost: Cost = field(default_factory=Cost, compare=False)
    note: str = ""
    complete: bool = True

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The confidence interval at that level, by Student's t with n - 1 degrees of freedom."""
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

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if isinstance(other, Estimate) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[Any, ...]:
        values = (getattr(self, f.name) for f in fields(self) if f.compare)
        return tuple("nan" if isinstance(x, float) and isnan(x) else x for x in values)

    def __str__(self) -> str:
        digits = f"{self.value:.4g} ± {self.stderr:.2g}" if self.stderr > 0 else f"{self.value:.6g}"
        marks = [self.kind, *([f"n={self.n}"] if self.n > 1 else []), *([] if self.complete else ["stopped early"])]
        return f"{digits} ({', '.join(marks)}){': ' + self.note if self.note else ''}"


class NotFinite(ArithmeticError):
    """The loss is infinite or not a number where it had to be measured, so there is no estimate."""


def refuse_not_finite(loss: float, where: str = "at the weights themselves") -> None:
    """Raises if a loss is infinite or not a number, also where its derivatives are finite."""
    if not isfinite(loss):
        raise NotFinite(f"the loss {where} is {loss}: look for the rows that it comes from, or measure in float64")


class Measure(Protocol):
    """A definition of sharpness: maps an objective to an estimate."""

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        """Better and better estimates, of which the last one is meant; whoever stops earlier has the one before."""
        ...

    def estimate(self, objective: Objective, seed: int = 0) -> Estimate:
        """The number, with its error and its cost; the model is left as it was."""
        with undisturbed(objective.model, objective.statistics):
            return last(self.running(objective, seed))


def last(estimates: Iterator[Estimate]) -> Estimate:
    """The estimate that a measure ends with."""
    final: Estimate | None = None
    for final in estimates:  # noqa: B007
        pass
    if final is None:
        raise RuntimeError("the measure ended without an estimate: running() must yield at least one")
    return final


def mean(draws: Tensor) -> Tensor:
    """The sample mean over the first dimension: the statistic that summarise() takes unless told otherwise."""
    return draws.mean(0)


def summarise(
    draws: Tensor,
    kind: Kind,
    statistic: Callable[[Tensor], Tensor] = mean,
    *,
    without_each: Callable[[Tensor], Tensor] | None = None,
    cost: Cost | None = None,
    note: str = "",
) -> Estimate:
    """`statistic` of independent draws (rows of a tensor), with its jackknife standard error.

    For the mean this is the textbook error; for a smooth function of means it is the delta method's. `without_each`
    gives the statistic without the first draw, without the second and so on, in linear time; None calls the statistic
    once per draw, which takes quadratic time.
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
        stderr = _jackknife(draws, without_each or (lambda draws: _without_each(draws, statistic)))
    if not isfinite(value):
        raise NotFinite(f"the statistic of {n} finite draws is {value}")
    return Estimate(value, stderr, n, kind, cost or Cost(), note)


def _jackknife(draws: Tensor, without_each: Callable[[Tensor], Tensor]) -> float:
    """The standard error from leaving out one draw at a time, nan if the statistic needs all of them."""
    try:
        without = without_each(draws)
    except ValueError:
        return nan
    return float(((len(draws) - 1) * without.var(0, correction=0)).sqrt())


def _without_each(draws: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.stack([statistic(torch.cat([draws[:i], draws[i + 1 :]])) for i in range(len(draws))])


def weighted(values: Tensor, weights: Tensor, kind: Kind, *, cost: Cost | None = None, note: str = "") -> Estimate:
    """The mean of independent draws that count unequally; those of weight 0 are left out."""
    values, weights = values[weights > 0], weights[weights > 0]
    if not len(values) or bool((weights == weights[0]).all()):
        return summarise(values, kind, cost=cost, note=note)
    draws = torch.stack([values * weights, weights], 1)
    return summarise(draws, kind, _ratio, without_each=_ratios_without_each, cost=cost, note=note)


def _ratio(draws: Tensor) -> Tensor:
    return draws[:, 0].sum() / draws[:, 1].sum()


def _ratios_without_each(draws: Tensor) -> Tensor:
    rest = draws.sum(0) - draws
    return rest[:, 0] / rest[:, 1]


def looks(n: int, every: int = 10) -> Iterator[int]:
    """The numbers of draws out of n after which a running estimate is due: `every` draws more, or a tenth more.

    An estimate takes time in proportion to its draws, so estimates at equal distances would take quadratic time.
    """
    due = 0
    while due < n:
        due = min(n, max(due + every, -(-due * 11 // (10 * every)) * every))
        yield due


def exact(value: float, *, cost: Cost | None = None, note: str = "") -> Estimate:
    """An estimate without error."""
    if not isfinite(value):
        raise NotFinite(f"the value is {value}")
    return Estimate(value, 0.0, 1, "exact", cost or Cost(), note)


def stopped(estimate: Estimate) -> Estimate:
    """The same estimate, marked as stopped early."""
    return replace(estimate, complete=False)
