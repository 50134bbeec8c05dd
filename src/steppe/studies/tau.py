"""A rank correlation that knows its error: Kendall's tau with an interval and a p-value, and with missing values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kendall import Floats, Ints, pairs, ranks
from .resampling import chance, jackknife, resampled, taus_of

DENSE = 300  # runs up to which a pool is drawn again; of more, the jackknife covers as well
FEWEST = 5  # runs that an interval needs: resamples of fewer take a handful of values
ERRORS_CARRIED, ERRORS_NONE, ERRORS_IGNORED = "carried", "exact values", "ignored"


@dataclass(frozen=True)
class Chance:
    """How intervals and p-values are made: how often pools are drawn again, runs shuffled, values redrawn; the seed."""

    level: float = 0.95
    resamples: int = 2000
    permutations: int = 9999
    redraws: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"a confidence level is between 0 and 1 (0.95 for 95 %), not {self.level}")
        for name in ("resamples", "permutations", "redraws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and has to be 1 or more")


@dataclass(frozen=True)
class Tau:
    """A rank correlation: tau-a with its interval and p-value, tau-b, how many runs it is of and how many had no value.

    `errors` says whether the errors of x, the measure, are in the interval: "carried", "exact values" (all are 0),
    "ignored", or for how many runs they are not known; those of y are, where known. `error_spread` is how much tau
    moves when values are redrawn within their errors, the runs staying the same; `attenuation` is how far that pulls
    it on average. What the errors took from tau already is about as much again.
    """

    tau: float
    tau_b: float
    low: float
    high: float
    p: float
    n: int
    missing: int = 0
    pairs: int = 0
    groups: int = 1
    level: float = 0.95
    adjusted: float = nan
    interval: str = ""
    p_from: str = ""
    errors: str = ERRORS_IGNORED
    error_spread: float = nan
    attenuation: float = nan

    @property
    def ignores_errors(self) -> bool:
        """Whether the interval leaves out errors of the values, or of some of them."""
        return self.errors not in (ERRORS_CARRIED, ERRORS_NONE)

    def __str__(self) -> str:
        span = f"{100 * self.level:g} % {self.low:+.2f} to {self.high:+.2f}" if isfinite(self.low) else "no interval"
        marks = [span, f"n = {self.n}", *([f"{self.missing} missing"] if self.missing else [])]
        marks += [f"p = {self.p:.2g}", *(["errors of the values ignored"] if self.errors == ERRORS_IGNORED else [])]
        return f"{self.tau:+.2f} ({', '.join(marks)})"


def kendall(
    x: ArrayLike,
    y: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    x_error: ArrayLike | None = None,
    y_error: ArrayLike | None = None,
    how: Chance = Chance(),  # noqa: B008, a frozen value
) -> Tau:
    """The rank correlation of two lists over the same runs; with groups, over pairs of runs in the same group.

    Runs without a value on either side are left out and counted. The interval is the percentile bootstrap over runs,
    each group drawn again from itself; a run drawn twice makes no pair with itself. Above 300 runs it is tau and the
    jackknife's standard error. Where errors are known, every resample has values redrawn within them, moved back by
    what redrawing moves tau on average: a second dose of noise would otherwise pull the interval to zero. That is on
    the wide side, for runs scatter by their errors already.
    """
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"two rankings of the same runs are two lists of one length, not of {a.shape} and {b.shape}")
    there = np.isfinite(a) & np.isfinite(b)
    label = _labels(groups, there)
    errors = _errors(x_error, there), _errors(y_error, there)
    a, b = a[there], b[there]
    counted = pairs(a, b, label)
    groups_used = int((np.bincount(label) > 1).sum())
    tau = Tau(
        *(counted.tau_a, counted.tau_b, nan, nan, nan, len(a), int((~there).sum())),
        *(counted.all, groups_used, how.level),
        errors=_carried(errors[0]),
    )
    if not counted.all:
        return replace(tau, interval="no interval: no two runs to compare")
    p, p_from = chance(counted.score, a, b, label, how.permutations, how.seed)
    tau = replace(tau, p=p, p_from=p_from, adjusted=p)
    errors = np.nan_to_num(errors[0]), np.nan_to_num(errors[1])
    if len(a) > DENSE:
        return _by_jackknife(_moved(tau, a, b, label, errors, how), jackknife(a, b, label))
    return _by_resampling(tau, a, b, label, errors, how)


def _labels(groups: ArrayLike | None, there: NDArray[np.bool_]) -> Ints:
    if groups is None:
        return np.zeros(int(there.sum()), dtype=np.int64)
    labels = np.asarray(groups)
    if labels.shape != there.shape:
        raise ValueError(f"each run has one group: there are {there.size} runs and {labels.size} groups")
    return ranks(labels[there])


def _errors(given: ArrayLike | None, there: NDArray[np.bool_]) -> Floats:
    """The standard errors of the values that are there; nan where none is known."""
    errors = np.full(there.shape, nan) if given is None else np.asarray(given, dtype=np.float64)
    if errors.shape != there.shape:
        raise ValueError(f"each value has one standard error: there are {there.size} values and {errors.size} errors")
    if (errors < 0).any():
        raise ValueError("a standard error is 0 or more, or nan where it is not known")
    return np.where(np.isfinite(errors), errors, nan)[there]


def _carried(errors: Floats) -> str:
    unknown = int(np.isnan(errors).sum())
    if unknown == len(errors):
        return ERRORS_IGNORED
    if unknown:
        return f"not known for {unknown} of {len(errors)} runs"
    return ERRORS_CARRIED if errors.any() else ERRORS_NONE


def _redrawn(a: Floats, b: Floats, errors: tuple[Floats, Floats], draws: np.random.Generator) -> tuple[Floats, Floats]:
    x, y = (v + e * draws.standard_normal(len(v)) for v, e in zip((a, b), errors, strict=True))
    return x, y


def _moving(tau: Tau, moved: Sequence[float]) -> Tau:
    """What redrawing did to tau."""
    spread = float(np.std(moved, ddof=1)) if len(moved) > 1 else nan
    return replace(tau, error_spread=spread, attenuation=float(np.mean(moved)) - tau.tau)


def _unmoved(tau: Tau) -> Tau:
    still = nan if tau.errors == ERRORS_IGNORED else 0.0
    return replace(tau, error_spread=still, attenuation=still)


def _any(errors: tuple[Floats, Floats]) -> bool:
    return any(bool(e.any()) for e in errors)


def _by_resampling(tau: Tau, a: Floats, b: Floats, label: Ints, errors: tuple[Floats, Floats], how: Chance) -> Tau:
    """The interval from resampled pools, each with values redrawn within their errors; and what redrawing does."""
    weights, tail = resampled(label, how.resamples, how.seed), (1 - how.level) / 2
    if not _any(errors):
        tau, taus = _unmoved(tau), taus_of(weights, a, b, label)
    else:
        draws, moved, found = np.random.default_rng([how.seed, 3]), [], []
        for part in np.array_split(np.arange(how.resamples), how.redraws):  # the pool as it is, and resamples of it
            x, y = _redrawn(a, b, errors, draws)
            redrawn = taus_of(np.vstack([np.ones_like(weights[:1]), weights[part]]), x, y, label)
            moved.append(float(redrawn[0]))
            found.append(redrawn[1:])
        tau = _moving(tau, moved)
        taus = np.concatenate(found) - tau.attenuation
    taus = taus[np.isfinite(taus)]
    if len(a) < FEWEST or not len(taus) or np.ptp(taus) == 0:
        return replace(tau, interval="no interval: too few runs, or all resamples give the same tau")
    low, high = np.quantile(taus, [tail, 1 - tail])
    return _spanned(tau, low, high, f"percentile bootstrap, {how.resamples} resamples of the runs")


def _moved(tau: Tau, a: Floats, b: Floats, label: Ints, errors: tuple[Floats, Floats], how: Chance) -> Tau:
    """What redrawing does to a pool that is not resampled."""
    if not _any(errors):
        return _unmoved(tau)
    draws = np.random.default_rng([how.seed, 3])
    redraws = (_redrawn(a, b, errors, draws) for _ in range(min(how.redraws, 5)))
    return _moving(tau, [pairs(x, y, label).tau_a for x, y in redraws])


def _by_jackknife(tau: Tau, error: float) -> Tau:
    from scipy.special import ndtri

    half = float(ndtri((1 + tau.level) / 2)) * float(np.hypot(error, np.nan_to_num(tau.error_spread)))
    return _spanned(tau, tau.tau - half, tau.tau + half, "normal, with the jackknife's standard error")


def _spanned(tau: Tau, low: float, high: float, words: str) -> Tau:
    return replace(tau, low=float(max(low, -1)), high=float(min(high, 1)), interval=words)
