"""Kendall's tau with a confidence interval, a p-value, missing values and errors of the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kendall import Floats, Ints, bootstrap_taus, bootstrap_weights, jackknife_error, pairs, permutation_p, ranks

MAX_BOOTSTRAP = 300  # runs up to which the interval is a bootstrap; above, the jackknife covers as well
FEWEST = 5  # runs that an interval needs: bootstrap samples of fewer take a handful of values
ERRORS_CARRIED, ERRORS_NONE, ERRORS_IGNORED = "carried", "exact values", "ignored"


@dataclass(frozen=True)
class Chance:
    """How intervals and p-values are computed.

    Parameters
    ----------
    level : float
        Confidence level of intervals.
    resamples : int
        Bootstrap samples per interval.
    permutations : int
        Random permutations per p-value.
    redraws : int
        How often values are redrawn within their standard errors.
    seed : int
        Seed of all of these.

    """

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
    """A rank correlation with its uncertainty.

    Attributes
    ----------
    tau, tau_b : float
        tau-a and tau-b.
    low, high, level, interval
        The confidence interval of tau-a, its level, and how it was computed; nan without one.
    p, adjusted, p_from
        The permutation p-value, the same corrected for the number of measures, and how it was computed.
    n, missing, pairs, groups : int
        Runs with both values, runs without, pairs that were compared, and groups with two runs or more.
    errors : str
        Whether the interval includes the errors of x, the measure: "carried", "exact values" (all are 0), "ignored",
        or for how many runs they are unknown. Known errors of y are always included.
    error_spread, attenuation : float
        Standard deviation and mean shift of tau when values are redrawn within their errors and the runs stay the
        same. The errors have already shifted tau by about as much.

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
    """Compute Kendall's tau of x and y with its interval and p-value.

    Parameters
    ----------
    x, y : array_like
        One value per run. Runs without a finite value on either side are dropped and counted.
    groups : array_like, optional
        One label per run; only pairs within a group are compared.
    x_error, y_error : array_like, optional
        Standard errors of the values, nan where unknown.
    how : Chance
        Level, numbers of draws and seed.

    Returns
    -------
    Tau

    Notes
    -----
    The interval is the percentile bootstrap over runs, resampled within groups; a run that is drawn twice forms no pair
    with itself. Above 300 runs it is normal, with the jackknife's standard error. Where errors are known, every
    bootstrap sample redraws the values within them and is shifted back by the mean effect of redrawing, because a
    second dose of noise would pull the interval to zero. The interval is then wide rather than narrow: runs already
    scatter by their errors.

    """
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"x and y must be two lists of the same length, not of shapes {a.shape} and {b.shape}")
    known = np.isfinite(a) & np.isfinite(b)
    label = _labels(groups, known)
    errors = _known_errors(x_error, known), _known_errors(y_error, known)
    a, b = a[known], b[known]
    counted = pairs(a, b, label)
    groups_used = int((np.bincount(label) > 1).sum())
    tau = Tau(
        *(counted.tau_a, counted.tau_b, nan, nan, nan, len(a), int((~known).sum())),
        *(counted.all, groups_used, how.level),
        errors=_errors_word(errors[0]),
    )
    if not counted.all:
        return replace(tau, interval="no interval: no two runs to compare")
    p, p_from = permutation_p(counted.score, a, b, label, how.permutations, how.seed)
    tau = replace(tau, p=p, p_from=p_from, adjusted=p)
    errors = np.nan_to_num(errors[0]), np.nan_to_num(errors[1])
    interval = _by_jackknife if len(a) > MAX_BOOTSTRAP else _by_bootstrap
    return interval(tau, a, b, label, errors, how)


def _labels(groups: ArrayLike | None, known: NDArray[np.bool_]) -> Ints:
    if groups is None:
        return np.zeros(int(known.sum()), dtype=np.int64)
    labels = np.asarray(groups)
    if labels.shape != known.shape:
        raise ValueError(f"each run has one group: there are {known.size} runs and {labels.size} groups")
    return ranks(labels[known])


def _known_errors(errors: ArrayLike | None, known: NDArray[np.bool_]) -> Floats:
    """Standard errors of the known values; nan where unknown."""
    array = np.full(known.shape, nan) if errors is None else np.asarray(errors, dtype=np.float64)
    if array.shape != known.shape:
        raise ValueError(f"each value has one standard error: there are {known.size} values and {array.size} errors")
    if (array < 0).any():
        raise ValueError("a standard error is 0 or more, or nan where it is unknown")
    return np.where(np.isfinite(array), array, nan)[known]


def _errors_word(errors: Floats) -> str:
    unknown = int(np.isnan(errors).sum())
    if unknown == len(errors):
        return ERRORS_IGNORED
    if unknown:
        return f"not known for {unknown} of {len(errors)} runs"
    return ERRORS_CARRIED if errors.any() else ERRORS_NONE


def _redrawn(a: Floats, b: Floats, errors: tuple[Floats, Floats], rng: np.random.Generator) -> tuple[Floats, Floats]:
    x, y = (v + e * rng.standard_normal(len(v)) for v, e in zip((a, b), errors, strict=True))
    return x, y


def _with_spread(tau: Tau, redrawn: Sequence[float]) -> Tau:
    """Tau with the spread and the mean shift of redrawn taus; without any, both are 0, or nan for unknown errors."""
    if not redrawn:
        none = nan if tau.errors == ERRORS_IGNORED else 0.0
        return replace(tau, error_spread=none, attenuation=none)
    spread = float(np.std(redrawn, ddof=1)) if len(redrawn) > 1 else nan
    return replace(tau, error_spread=spread, attenuation=float(np.mean(redrawn)) - tau.tau)


def _by_bootstrap(tau: Tau, a: Floats, b: Floats, label: Ints, errors: tuple[Floats, Floats], how: Chance) -> Tau:
    """The percentile interval of bootstrap samples, each with values redrawn within their errors."""
    weights, tail = bootstrap_weights(label, how.resamples, how.seed), (1 - how.level) / 2
    if not any(e.any() for e in errors):
        tau, taus = _with_spread(tau, ()), bootstrap_taus(weights, a, b, label)
    else:
        rng, whole, samples = np.random.default_rng([how.seed, 3]), [], []
        for part in np.array_split(np.arange(how.resamples), how.redraws):  # all runs once, then samples of them
            x, y = _redrawn(a, b, errors, rng)
            redrawn = bootstrap_taus(np.vstack([np.ones_like(weights[:1]), weights[part]]), x, y, label)
            whole.append(float(redrawn[0]))
            samples.append(redrawn[1:])
        tau = _with_spread(tau, whole)
        taus = np.concatenate(samples) - tau.attenuation
    taus = taus[np.isfinite(taus)]
    if len(a) < FEWEST or not len(taus) or np.ptp(taus) == 0:
        return replace(tau, interval="no interval: too few runs, or all resamples give the same tau")
    low, high = np.quantile(taus, [tail, 1 - tail])
    return _with_interval(tau, low, high, f"percentile bootstrap, {how.resamples} resamples of the runs")


def _by_jackknife(tau: Tau, a: Floats, b: Floats, label: Ints, errors: tuple[Floats, Floats], how: Chance) -> Tau:
    """The normal interval with the jackknife's standard error and the spread of redrawn values."""
    from scipy.special import ndtri

    rng = np.random.default_rng([how.seed, 3])
    times = min(how.redraws, 5) if any(e.any() for e in errors) else 0
    tau = _with_spread(tau, [pairs(*_redrawn(a, b, errors, rng), label).tau_a for _ in range(times)])
    error = float(np.hypot(jackknife_error(a, b, label), np.nan_to_num(tau.error_spread)))
    half = float(ndtri((1 + tau.level) / 2)) * error
    return _with_interval(tau, tau.tau - half, tau.tau + half, "normal, with the jackknife's standard error")


def _with_interval(tau: Tau, low: float, high: float, method: str) -> Tau:
    return replace(tau, low=float(max(low, -1)), high=float(min(high, 1)), interval=method)
