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
from numpy.typing import ArrayLike

from .kendall import Floats, ranks
from .resampling import SHUFFLED
from .tau import Chance, Tau

Verdict = Literal["supported", "not supported", "contradicted", "undecided"]

# The paper names no number for "highly correlated"; it calls 0.30 low. At 0.5 three of four pairs are in order.
HIGH = 0.5
FLATTEST = 0.1  # the share of runs that counts as the flattest
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

    Runs that are tied at the border share the places that are left. The interval is Student's t, with what chance does
    to the border in its error; in simulated pools of 20 runs and more its 95 % covered 90 to 97 %, also where the
    effect is strong (targets with a long tail: 84 % at worst). p: how often as many runs picked blindly do as well or
    better. A verdict needs both: an interval without zero, and a p as far in its tail.
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
    flat, rest, half = _sides(a, b, few, how.level)
    low, high = rest - flat - half, rest - flat + half
    p = _blindly(a, b, few, rest - flat, how)
    numbers = {"flattest": flat, "rest": rest, "difference": rest - flat, "low": low, "high": high, "p": p}
    numbers |= {"n": float(n), "k": float(few), "best": float(b.min()), "missing": float((~there).sum())}
    tail = (1 - how.level) / 2  # a few flat runs that are alike make a short interval: blind picks must agree with it
    better, worse = low > 0 and p <= tail, high < 0 and p >= 1 - tail
    verdict: Verdict = "supported" if better else "contradicted" if worse else "undecided"
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


def _inside(a: Floats, few: int) -> Floats:
    """How much of each run is among the flattest `few`: those tied at the border are in part."""
    ranked = ranks(a)
    size = np.bincount(ranked)
    below = np.cumsum(size) - size
    return np.clip((few - below[ranked]) / size[ranked], 0, 1)


def _sides(a: Floats, b: Floats, few: int, level: float) -> tuple[float, float, float]:
    """The means of b over the flattest `few` runs by a and over the rest, and half the interval of their difference.

    In another pool other runs would be at the border, where the mean is m: the influence of a run on the difference
    is (b - m) / (1 - share) in the rest and -(b - m) / share among the flattest, and the variance of that has three
    parts. The first hangs on few runs, so that the quantile is Student's (degrees of freedom after Welch 1947).
    """
    from scipy.special import stdtrit

    n, inside = len(b), _inside(a, few)
    flat, rest = float(inside @ b / few), float((1 - inside) @ b / (n - few))
    near = min(max(2, few // 2), few, n - few)  # runs on either side that say how good those at the border are
    m = float((_inside(a, few + near) - _inside(a, few - near)) @ b / (2 * near))
    odds = sqrt(few / (n - few))
    first = float(inside @ (b - flat) ** 2 / (few - 1) / few)
    second = float((1 - inside) @ (b - rest) ** 2 / (n - few - 1) / (n - few))
    border = ((rest - m) * odds + (flat - m) / odds) ** 2 / n
    whole, others = first + second + border, second + border
    freedom = whole**2 / (first**2 / (few - 1) + others**2 / (n - few - 1)) if whole else 1.0
    return flat, rest, float(stdtrit(freedom, (1 + level) / 2)) * sqrt(whole)


def _blindly(a: Floats, b: Floats, few: int, difference: float, how: Chance) -> float:
    """How often targets shuffled over the runs give a difference as large: one-sided, as the hypothesis is."""
    n = len(b)
    if n > SHUFFLED:  # a mean of so many is normal, with the variance of draws without replacement
        from scipy.special import ndtr

        spread = float(b.std(ddof=1)) * sqrt(n / (few * (n - few)))
        return float(ndtr(-difference / spread)) if spread else 1.0
    draws = np.random.default_rng([how.seed, 4])
    inside = draws.permuted(np.broadcast_to(b, (how.permutations, n)), axis=1) @ _inside(a, few)
    found = (b.sum() - inside) / (n - few) - inside / few
    room = 1e-12 * float(np.abs(b).max())  # sums in another order differ by rounding
    return (1 + int((found >= difference - room).sum())) / (1 + how.permutations)
