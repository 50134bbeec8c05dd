"""The error of a mean over runs that share the levels of several factors.

Every factor has a variance of its own: that of the mean if its levels were drawn again, with the degrees of freedom of
its levels. Two seeds have one degree of freedom, however many learning rates they are crossed with. Each part therefore
keeps its own quantile of Student's t: the half-width of an interval is the root of the sum of t^2 V over parts. For
normal variables this covers at least as often as it says, whatever the parts are (Banerjee 1960), which Satterthwaite's
degrees of freedom do not: with two crossed seeds they reject up to 15 times too often at 0.003.

What single runs add is in the variance of every factor. It is counted once, with the least favourable quantile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
POWER = 0.8  # of what a study is said to be able to show (Cohen 1988)
NORMAL = 1e6  # degrees of freedom with which Student's t is normal


@dataclass(frozen=True)
class Part:
    """The variance that one sample adds: its name, its levels and its degrees of freedom."""

    name: str
    levels: int
    freedom: float
    variance: float


@dataclass(frozen=True)
class Spread:
    """The parts of the variance of a mean; the residual is inside those of `shared`, and `more` come on top."""

    shared: Sequence[Part]
    residual: Part
    more: Sequence[Part] = field(default=())

    @classmethod
    def of(cls, parts: Sequence[Part], units: Part, more: Sequence[Part] = ()) -> Spread:
        """Split the variance of units, which holds the levels of all factors, into those of factors and the rest.

        Sums of squares add up: what factors leave of that of the units is the residual.
        """
        if not parts:
            return cls([units], Part("", units.levels, units.freedom, 0.0), more)
        freedom = units.freedom - sum(p.freedom for p in parts)
        left = units.variance * units.freedom - sum(p.variance * p.freedom for p in parts)
        residual = max(left / freedom, 0.0) if freedom >= 1 else 0.0
        return cls(parts, Part("", units.levels, max(freedom, 1.0), residual), more)

    @property
    def own(self) -> list[Part]:
        """What each factor adds to the residual."""
        e = self.residual.variance
        parts = [Part(p.name, p.levels, p.freedom, max(p.variance - e, 0.0)) for p in self.shared]
        return [*parts, *self.more]

    @property
    def variance(self) -> float:
        """The variance of the mean."""
        return max(sum(p.variance for p in self.own) + self.residual.variance, *(p.variance for p in self.shared))

    def half(self, level: float) -> float:
        """Half the width of the interval that misses the true mean with this chance."""
        e, parts = self.residual.variance, (*self.shared, *self.more, self.residual)
        squares = {p.freedom: float(stdtrit(p.freedom, level / 2)) ** 2 for p in parts}
        most = max(squares[p.freedom] * min(p.variance, e) for p in (*self.shared, self.residual))
        return sqrt(sum(squares[p.freedom] * p.variance for p in self.own) + most)

    def p(self, distance: float) -> float:
        """The two-sided p-value of a mean so far from the tested one: the level at which the interval ends there."""
        distance = abs(distance)
        if not distance:
            return 1.0
        if not self.variance:
            return 0.0
        if len(self.shared) == 1 and not self.more and not self.residual.variance:
            (one,) = self.shared
            return float(2 * stdtr(one.freedom, -distance / sqrt(one.variance)))
        low, high = -40.0, 0.0  # the level's logarithm
        if self.half(1.0) > distance:
            return 1.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.half(10.0**middle) > distance else (low, middle)
        return float(10.0**high)

    @property
    def dominant(self) -> Part:
        """The sample that adds most to the width of the interval."""
        return max(self.shared, key=lambda p: p.variance * float(stdtrit(p.freedom, 0.025)) ** 2)
