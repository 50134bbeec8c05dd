"""What a comparison estimates: the test error of the run that validation selects among T trials, and differences of it.

theta(T) is the mean of the selected run's test error over all sets of T of the N trials of a method: a U-statistic,
whose weights follow from the order on validation (Dodge et al. 2019; Tang et al. 2020). Trials of all methods share
their points, so a difference is paired. Its variance has two parts: that of points and seeds, by the jackknife, which
leaves a point out of both methods, and that of the test rows, which neither trials nor seeds average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaln, stdtr, stdtrit

from .halving import Halved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LARGE = 1e9  # degrees of freedom from which on Student's distribution is the normal one


@dataclass(frozen=True)
class Outcomes:
    """The errors of a method's trials, in the order of their points.

    Parameters
    ----------
    validation
        The error on validation rows of each trial, which ranks them.
    test
        The error on test rows of each trial.
    rows
        Per trial and test row, whether it is wrong; without it, the variance of rows is taken as zero.
    failed
        Whether each trial failed, if any did.
    halved
        With halving, the errors from which `validation` follows.

    """

    validation: Array
    test: Array
    rows: NDArray[np.bool_] | None = None
    failed: NDArray[np.bool_] | None = None
    halved: Halved | None = None

    @classmethod
    def of(cls, validation: Array, rows: NDArray[np.bool_]) -> Outcomes:
        """Return the outcomes with the test errors of the rows."""
        return cls(validation, rows.mean(1), rows)

    def first(self, n: int) -> Outcomes:
        """Return those of the first n trials."""
        rows, failed = (None if x is None else x[:n] for x in (self.rows, self.failed))
        halved = None if self.halved is None else self.halved.cut(n)
        validation = self.validation[:n] if halved is None else halved.ranked()
        return Outcomes(validation, self.test[:n], rows, failed, halved)

    def weights_without(self, tuning: int) -> Array:
        """Return a matrix whose row j has the weights without trial j."""
        found = weights_without(self.validation, tuning)
        if self.halved is None:
            return found
        ranks = [self.halved.ranked(j) for j in range(min(self.halved.first, len(self)))]
        for other in {r.tobytes(): r for r in ranks}.values():  # one less of the first gives few other thresholds
            if not np.array_equal(other, self.validation):
                rows = [j for j, r in enumerate(ranks) if np.array_equal(r, other)]
                found[rows] = weights_without(other, tuning)[rows]
        return found

    @property
    def all_failed(self) -> bool:
        return self.failed is not None and bool(self.failed.all())

    def __len__(self) -> int:
        return len(self.validation)


@dataclass(frozen=True)
class Estimated:
    """An error or a difference of errors, with the variances of points and of rows, and degrees of freedom.

    `lasting` is the part of `rows` that stays with ever more trials: rows that are hard for all trials of a method.
    The rest is of the trials themselves, and in the variance of points too.
    """

    value: float
    points: float
    rows: float
    lasting: float
    trials: int
    tuning: int

    @property
    def stderr(self) -> float:
        return sqrt(self.points + self.rows)

    @property
    def df(self) -> float:
        """2 N / T, more where rows have a part in the variance: a rule that simulations confirm."""
        if self.points <= 0:
            return LARGE
        return min(2 * self.trials / self.tuning * (1 + self.rows / self.points) ** 2, LARGE)

    @property
    def p(self) -> float:
        """The two-sided p-value of zero."""
        if self.stderr == 0:
            return 1.0 if self.value == 0 else 0.0
        return float(2 * stdtr(self.df, -abs(self.value) / self.stderr))

    def half_width(self, level: float) -> float:
        """Return half the width of the interval of confidence 1 - level."""
        return quantile(self.df, level / 2) * self.stderr

    def at(self, trials: int) -> Estimated:
        """Return the same value with the variances that this many trials are expected to have."""
        part = self.trials / trials
        rows = self.lasting + part * (self.rows - self.lasting)
        return Estimated(self.value, part * self.points, rows, self.lasting, trials, self.tuning)


def quantile(df: float, tail: float) -> float:
    """Return the point of Student's distribution with this probability above it; infinite for none."""
    return inf if tail <= 0 else float(-stdtrit(df, tail))


def shares(n: int, tuning: int) -> Array:
    """Return, for k = 0 .. n, the probability that the best of `tuning` among n trials is one of the best k."""
    k = np.arange(n + 1)
    rest = n - k  # C(rest, T) / C(n, T): none of the T is among the best k
    with np.errstate(invalid="ignore"):
        logs = _log_choose(rest, tuning) - _log_choose(np.array(n), tuning)
    return np.asarray(1 - np.where(rest >= tuning, np.exp(logs), 0.0))


def weights(validation: Array, tuning: int) -> Array:
    """Return the probability of each trial to be the best on validation of `tuning` drawn; ties share theirs."""
    v = np.asarray(validation)
    below, upto = (v[None, :] < v[:, None]).sum(1), (v[None, :] <= v[:, None]).sum(1)
    total = shares(len(v), tuning)
    return np.asarray((total[upto] - total[below]) / (upto - below))


def weights_without(validation: Array, tuning: int) -> Array:
    """Return a matrix whose row j has the weights without trial j."""
    v, n = np.asarray(validation), len(validation)
    less, equal = v[:, None] < v[None, :], v[:, None] == v[None, :]  # of j, in rows, and i
    below = less.sum(0)[None, :] - less
    tied = equal.sum(0)[None, :] - equal
    np.fill_diagonal(tied, 1)  # a trial that is left out has no weight, and no ties
    total = shares(n - 1, tuning)
    found = (total[np.minimum(below + tied, n - 1)] - total[below]) / tied
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def estimate(method: Outcomes, reference: Outcomes | None, tuning: int, row_variance: float | None = None) -> Estimated:
    """Estimate theta(T) of a method, or its difference from a reference's.

    Parameters
    ----------
    method, reference
        Trials at the same points.
    tuning
        T, the number of trials among which validation selects; less than the number of trials.
    row_variance
        The variance that the test rows add; by default from `Outcomes.rows`.

    """
    n = len(method)
    if not 1 <= tuning < n:
        raise ValueError(f"{n} trials of a method show the best of up to {n - 1}, not of {tuning}: run more")
    value, without = 0.0, np.zeros(n)
    wrong: list[tuple[Array, NDArray[np.bool_]]] = []
    for sign, outcomes in ((1, method), (-1, reference)):
        if outcomes is None:
            continue
        w = weights(outcomes.validation, tuning)
        value += sign * float(w @ outcomes.test)
        without += sign * (outcomes.weights_without(tuning) @ outcomes.test)
        if outcomes.rows is not None:
            wrong.append((sign * w, outcomes.rows))
    points = (n - 1) / n * float(((without - without.mean()) ** 2).sum())
    rows = lasting = row_variance or 0.0
    if row_variance is None and wrong:
        each = sum(w @ flags for w, flags in wrong)
        rows = float(np.var(each, ddof=1)) / np.size(each)
        lasting = min(max(sum(_between(*one, *other) for one in wrong for other in wrong), 0.0), rows)
    return Estimated(value, points, rows, lasting, n, tuning)


def _between(u: Array, one: NDArray[np.bool_], v: Array, other: NDArray[np.bool_]) -> float:
    """The covariance over rows of the errors of two different trials, with these weights, over the number of rows."""
    n = one.shape[1]
    own = (one & other).mean(1) - one.mean(1) * other.mean(1)  # of trials at the same point
    covariance = np.mean((u @ one) * (v @ other)) - np.mean(u @ one) * np.mean(v @ other) - (u * v) @ own
    whole = u.sum() * v.sum()
    return float(covariance * whole / (whole - u @ v) / (n - 1))


def curve(method: Outcomes, upto: int | None = None) -> Iterator[Estimated]:
    """Yield the estimates for T = 1, 2 ..., by default up to half the trials: the tuning curve."""
    for tuning in range(1, (upto or len(method) // 2) + 1):
        yield estimate(method, None, tuning)


def detectable(difference: Estimated, trials: int, level: float, power: float = 0.8) -> float:
    """Return the difference that this many trials detect with some power, at a two-sided level, from a first look."""
    then = difference.at(trials)
    return (quantile(then.df, level / 2) + quantile(then.df, 1 - power)) * then.stderr


def trials_for(difference: Estimated, size: float, level: float, most: int = 100_000) -> float:
    """Return about how many trials detect a difference of this size; infinite if the test rows cannot show it."""
    n = difference.trials
    while detectable(difference, n, level) > size:
        n += max(n // 20, 1)
        if n > most:
            return inf
    return n


def _log_choose(n: NDArray[np.int64], k: int) -> Array:
    return np.asarray(-betaln(n - k + 1, k + 1) - np.log(n + 1))
