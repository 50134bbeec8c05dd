"""The two hypotheses of section 3.1 of Andriushchenko et al. 2023, answered in words with numbers.

Strong: sharpness is highly correlated with generalisation. Weak: the flattest models generalise well, so that flatness
might be sufficient without being necessary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kendall import Floats
from .resampling import SHUFFLED, resampled
from .tau import Chance, Tau

Verdict = Literal["supported", "not supported", "contradicted", "undecided"]

# The paper names no number for "highly correlated"; it calls 0.30 low. At 0.5 three of four pairs are in order.
HIGH = 0.5
FLATTEST = 0.1  # the share of runs that counts as the flattest
_ENTRIES = 2_000_000  # of a matrix of resamples, which large pools have fewer of
FEWEST = 3  # runs on either side: the mean of fewer says nothing about others like them


@dataclass(frozen=True)
class Answer:
    """What a pool says to a hypothesis: a verdict, a sentence, and the numbers in the sentence."""

    verdict: Verdict
    words: str
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.verdict}: {self.words}"


def strong(tau: Tau, within: Tau | None = None, high: float = HIGH) -> Answer:
    """Whether the measure is highly correlated with the target, by where tau's whole interval lies.

    Within groups is told beside it: a correlation that holds only there does not tell which group is better.
    """
    span = f"tau is {tau}"
    if within is not None:
        span += f"; within {within.groups} groups it is {within}"
    numbers = {"tau": tau.tau, "low": tau.low, "high": tau.high, "p": tau.p, "n": float(tau.n), "bar": high}
    verdict: Verdict
    if not isfinite(tau.low):
        verdict, why = "undecided", "there is no interval"
    elif tau.low >= high:
        verdict, why = "supported", f"the whole interval is at {high:g} or above"
    elif tau.high < 0:
        verdict, why = "contradicted", "the whole interval is below zero: flatter runs are worse"
    elif tau.high < high:
        only = "positive, but not high" if tau.low > 0 else "not even clearly positive"
        verdict, why = "not supported", f"the whole interval is below {high:g}; the correlation is {only}"
    else:
        only = "the correlation is positive, and may or may not be high" if tau.low > 0 else "it holds zero as well"
        verdict, why = "undecided", f"the interval reaches {high:g}, and {only}: more runs are needed"
    ignored = " The interval ignores errors of the measured values." if tau.ignores_errors else ""
    return Answer(verdict, f"{span}; {why}.{ignored}", numbers)


def weak(
    x: ArrayLike,
    y: ArrayLike,
    *,
    share: float = FLATTEST,
    how: Chance = Chance(),  # noqa: B008, a frozen value
) -> Answer:
    """Whether the flattest runs have a lower target on average than the rest, with an interval for the difference.

    Runs that are tied at the border share the places that are left. The interval is the percentile bootstrap over
    runs, and each resample has its own flattest ones; where the effect is strong it covers less than it says in pools
    of thirty runs. p: how often as many runs picked blindly do as well or better.
    """
    if not 0 < share < 1:
        raise ValueError(f"the flattest are a share of the runs between 0 and 1 (0.1 for 10 %), not {share}")
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    there = np.isfinite(a) & np.isfinite(b)
    a, b, n = a[there], b[there], int(there.sum())
    few = max(ceil(share * n), min(FEWEST, n))
    if n - few < FEWEST or np.ptp(a) == 0:
        words = f"{n} runs with both values are too few" if n - few < FEWEST else "all runs are equally flat"
        return Answer("undecided", f"{words} to set the flattest apart from the rest.", {"n": float(n)})
    flat, rest = (float(v[0]) for v in _sides(np.ones((1, n), dtype=np.float32), a, b, few))
    times = min(how.resamples, max(200, _ENTRIES // n))
    sides = _sides(resampled(np.zeros(n, dtype=np.int64), times, how.seed), a, b, few)
    tail = (1 - how.level) / 2
    low, high = (float(q) for q in np.quantile(sides[1] - sides[0], [tail, 1 - tail]))
    p = _blindly(a, b, few, rest - flat, how)
    numbers = {"flattest": flat, "rest": rest, "difference": rest - flat, "low": low, "high": high, "p": p}
    numbers |= {"n": float(n), "k": float(few), "best": float(b.min()), "missing": float((~there).sum())}
    verdict: Verdict = "supported" if low > 0 else "contradicted" if high < 0 else "undecided"
    says = {
        "supported": "the flattest are better",
        "contradicted": "the flattest are worse",
        "undecided": "the difference may as well be zero",
    }[verdict]
    span = f"{100 * how.level:g} % {low:+.3g} to {high:+.3g}"
    words = (
        f"the flattest {few} of {n} runs have {flat:.4g} on average, the rest {rest:.4g}; rest less flattest is "
        f"{rest - flat:+.3g} ({span}), and {few} runs picked blindly do as well with p = {p:.2g}: {says}. "
        f"The best run has {b.min():.4g}."
    )
    return Answer(verdict, words, numbers)


def _sides(weights: NDArray[np.float32], a: Floats, b: Floats, few: int) -> tuple[Floats, Floats]:
    """For each row of weights the mean of b over the flattest `few` runs by a, and over the rest."""
    order = np.argsort(a, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(a[order]) > 0])
    w = weights[:, order].astype(np.float64)
    mass, total = (np.add.reduceat(v, starts, axis=1) for v in (w, w * b[order]))
    before = np.cumsum(mass, axis=1) - mass
    taken = np.clip(few - before, 0, mass)
    part = np.divide(taken, mass, out=np.zeros_like(mass), where=mass > 0)
    inside = (part * total).sum(1)
    return inside / few, (total.sum(1) - inside) / (w.sum(1) - few)


def _blindly(a: Floats, b: Floats, few: int, difference: float, how: Chance) -> float:
    """How often targets shuffled over the runs give a difference as large: one-sided, as the hypothesis is."""
    n = len(b)
    if n > SHUFFLED:  # a mean of so many is normal, with the variance of draws without replacement
        from scipy.special import ndtr

        spread = float(b.std(ddof=1)) * sqrt(n / (few * (n - few)))
        return float(ndtr(-difference / spread)) if spread else 1.0
    shuffled = np.random.default_rng([how.seed, 4]).permuted(np.broadcast_to(b, (how.permutations, n)), axis=1)
    below, equal = (a[:, None] > a).sum(1), (a[:, None] == a).sum(1)
    inside = shuffled @ np.clip((few - below) / equal, 0, 1)  # a run that is tied at the border is in it in part
    found = (b.sum() - inside) / (n - few) - inside / few
    room = 1e-12 * float(np.abs(b).max())  # sums in another order differ by rounding
    return (1 + int((found >= difference - room).sum())) / (1 + how.permutations)
