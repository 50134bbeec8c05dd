"""The two hypotheses of section 3.1 of Andriushchenko et al. 2023, answered with a verdict and a sentence.

Strong: sharpness is highly correlated with generalisation. Weak: the flattest models generalise well, so flatness might
be sufficient without being necessary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from .kendall import MAX_PERMUTED, Floats, ranks
from .tau import Chance, Tau

Verdict = Literal["supported", "not supported", "contradicted", "undecided"]

# The paper names no number for "highly correlated" and calls 0.30 low. At 0.5 three of four pairs are in order.
HIGH = 0.5
FLATTEST = 0.1  # the share of runs that counts as the flattest
FEWEST = 3  # runs on either side: the mean of fewer does not generalise


@dataclass(frozen=True)
class Answer:
    """The answer to a hypothesis: a verdict, a sentence, and the numbers in the sentence."""

    verdict: Verdict
    words: str
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.verdict}: {self.words}"


def strong(tau: Tau, within: Tau | None = None, high: float = HIGH) -> Answer:
    """Decide whether the measure is highly correlated with the target.

    Parameters
    ----------
    tau : Tau
        Over all runs. The verdict depends on its interval alone.
    within : Tau, optional
        Within groups, for the sentence: a correlation that holds only within groups does not rank the groups.
    high : float
        The tau from which a correlation is high.

    """
    sentence = f"tau is {tau}"
    if within is not None:
        sentence += f"; within {within.groups} groups it is {within}"
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
        only = "the correlation is positive, and may or may not be high" if tau.low > 0 else "it includes zero"
        verdict, why = "undecided", f"the interval reaches {high:g}, and {only}: more runs are needed"
    ignored = " The interval ignores errors of the measured values." if tau.ignores_errors else ""
    return Answer(verdict, f"{sentence}; {why}.{ignored}", numbers)


def weak(
    x: ArrayLike,
    y: ArrayLike,
    *,
    share: float = FLATTEST,
    how: Chance = Chance(),  # noqa: B008, a frozen value
) -> Answer:
    """Decide whether the flattest runs have a lower mean target than the rest.

    Parameters
    ----------
    x, y : array_like
        The measure and the target, one value per run.
    share : float
        The share of runs that counts as the flattest. Runs that are tied at the border share the remaining places.
    how : Chance
        Level, number of permutations and seed.

    Notes
    -----
    The interval of the difference is Student's t with the variability of the border in its error. In simulated pools of
    20 runs and more its 95 % covered 90 to 97 %, also with a strong effect (targets with a long tail: 84 % at worst).
    p is how often as many random runs do as well or better. A verdict needs both: an interval without zero, and a p as
    far in its tail.

    """
    if not 0 < share < 1:
        raise ValueError(f"the flattest are a share of the runs between 0 and 1 (0.1 for 10 %), not {share}")
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    known = np.isfinite(a) & np.isfinite(b)
    a, b, n = a[known], b[known], int(known.sum())
    few = max(ceil(share * n), min(FEWEST, n))
    if n - few < FEWEST or np.ptp(a) == 0:
        words = f"{n} runs with both values are too few" if n - few < FEWEST else "all runs are equally flat"
        return Answer("undecided", f"{words} to separate the flattest from the rest.", {"n": float(n)})
    flat, rest, half = _sides(a, b, few, how.level)
    low, high = rest - flat - half, rest - flat + half
    p = _permutation_p(a, b, few, rest - flat, how)
    numbers = {"flattest": flat, "rest": rest, "difference": rest - flat, "low": low, "high": high, "p": p}
    numbers |= {"n": float(n), "k": float(few), "best": float(b.min()), "missing": float((~known).sum())}
    tail = (1 - how.level) / 2  # a few flat runs that are alike make a short interval: permutations have to agree
    better, worse = low > 0 and p <= tail, high < 0 and p >= 1 - tail
    verdict: Verdict = "supported" if better else "contradicted" if worse else "undecided"
    conclusion = {
        "supported": "the flattest are better",
        "contradicted": "the flattest are worse",
        "undecided": "the difference may be zero",
    }[verdict]
    interval = f"{100 * how.level:g} % {low:+.3g} to {high:+.3g}"
    words = (
        f"the flattest {few} of {n} runs have a mean of {flat:.4g}, the rest {rest:.4g}; rest minus flattest is "
        f"{rest - flat:+.3g} ({interval}), and {few} random runs do as well with p = {p:.2g}: {conclusion}. "
        f"The best run has {b.min():.4g}."
    )
    return Answer(verdict, words, numbers)


def _membership(a: Floats, few: int) -> Floats:
    """How much of each run is among the flattest `few`: runs tied at the border are in part."""
    ranked = ranks(a)
    size = np.bincount(ranked)
    below = np.cumsum(size) - size
    return np.clip((few - below[ranked]) / size[ranked], 0, 1)


def _sides(a: Floats, b: Floats, few: int, level: float) -> tuple[float, float, float]:
    """The means of b over the flattest `few` runs by a and over the rest, and half the interval of their difference.

    In another pool other runs would be at the border, where the mean is m. The influence of a run on the difference is
    (b - m) / (1 - share) in the rest and -(b - m) / share among the flattest, and its variance has three parts. The
    first depends on few runs, so the quantile is Student's (degrees of freedom after Welch 1947).
    """
    from scipy.special import stdtrit

    n, inside = len(b), _membership(a, few)
    flat, rest = float(inside @ b / few), float((1 - inside) @ b / (n - few))
    near = min(max(2, few // 2), few, n - few)  # runs on either side of the border that estimate m
    m = float((_membership(a, few + near) - _membership(a, few - near)) @ b / (2 * near))
    odds = sqrt(few / (n - few))
    first = float(inside @ (b - flat) ** 2 / (few - 1) / few)
    second = float((1 - inside) @ (b - rest) ** 2 / (n - few - 1) / (n - few))
    border = ((rest - m) * odds + (flat - m) / odds) ** 2 / n
    total, others = first + second + border, second + border
    freedom = total**2 / (first**2 / (few - 1) + others**2 / (n - few - 1)) if total else 1.0
    return flat, rest, float(stdtrit(freedom, (1 + level) / 2)) * sqrt(total)


def _permutation_p(a: Floats, b: Floats, few: int, difference: float, how: Chance) -> float:
    """The one-sided p-value of the difference when targets are permuted over the runs."""
    n = len(b)
    if n > MAX_PERMUTED:  # a mean of so many is normal, with the variance of draws without replacement
        from scipy.special import ndtr

        spread = float(b.std(ddof=1)) * sqrt(n / (few * (n - few)))
        return float(ndtr(-difference / spread)) if spread else 1.0
    rng = np.random.default_rng([how.seed, 4])
    inside = rng.permuted(np.broadcast_to(b, (how.permutations, n)), axis=1) @ _membership(a, few)
    null = (b.sum() - inside) / (n - few) - inside / few
    slack = 1e-12 * float(np.abs(b).max())  # sums in another order differ by rounding
    return (1 + int((null >= difference - slack).sum())) / (1 + how.permutations)
