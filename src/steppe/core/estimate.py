"""Estimates: a number with its standard error, its kind and its cost; without torch, so that reports read them fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from math import isfinite, isnan, nan
from operator import add, sub
from typing import Any, Literal

from .._util.numbers import compared, number, with_error

Kind = Literal["exact", "unbiased", "plug-in", "lower bound", "upper bound"]


@dataclass(frozen=True)
class Cost:
    """Work in passes over all samples, and time; costs can be added and subtracted.

    Parameters
    ----------
    losses, gradients, products
        Forward passes, forward-backward passes, and products with the Hessian, each over all samples.
    seconds
        Wall-clock time.

    Examples
    --------
    >>> cost = steppe.measures.Cost(losses=2, gradients=1) + steppe.measures.Cost(products=3)
    >>> print(cost)  # a product takes two passes
    9 passes
    >>> cost.passes
    9.0

    """

    losses: float = 0.0
    gradients: float = 0.0
    products: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, self._numbers, other._numbers))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*map(sub, self._numbers, other._numbers))

    @property
    def _numbers(self) -> tuple[float, ...]:  # dataclasses.astuple copies deeply, which took 20 us
        return self.losses, self.gradients, self.products, self.seconds

    @property
    def passes(self) -> float:
        """Passes over all samples, forward or forward and backward: one for a loss or gradient, two for a product."""
        return float(self.losses + self.gradients + 2 * self.products)

    def __str__(self) -> str:
        shown = number(self.passes, 3)
        return "nothing" if not self.passes else f"{shown} {'pass' if shown == '1' else 'passes'}"


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
    >>> steppe.Estimate.from_dict(sharpness.to_dict()) == sharpness
    True

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

    def to_dict(self, *, interval: bool = True) -> dict[str, Any]:
        """All fields as values of JSON: nan is None, inf is "inf".

        Parameters
        ----------
        interval
            Adds the 95 % interval.

        """
        values = asdict(self) | ({"interval": self.interval()} if interval else {})
        return {k: _plain(v) for k, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Estimate:
        """The estimate that `to_dict` wrote; raises ValueError for a mapping that is none."""
        try:
            given = {k: v for k, v in values.items() if k != "interval"}
            cost = Cost(**{k: _number(v) for k, v in given.pop("cost", {}).items()})
            value, stderr = _number(given.pop("value")), _number(given.pop("stderr", None))
            return cls(value, stderr, int(given.pop("n")), given.pop("kind"), cost, **given)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"{values!r:.200} is no estimate: {error!r}") from error

    def __repr__(self) -> str:
        return f"Estimate({self})"

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


def _plain(value: Any) -> Any:
    """A value of JSON: numbers that it does not have become None or a text, which `_number` reads."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def _number(value: float | str | None) -> float:
    return nan if value is None else float(value)
