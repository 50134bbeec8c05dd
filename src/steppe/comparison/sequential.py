"""The verdicts of a comparison: several looks, several contenders, and one level for all of them.

At every look, a contender's difference from the reference is tested at the level that a spending function of O'Brien
and Fleming's type leaves it (Lan and DeMets 1983), and Holm's procedure passes the level of each rejection on. "No
difference" means: the interval of level 2 alpha, by the same spending, lies within the smallest difference that would
change the choice. Intervals are the repeated ones of their look (Jennison and Turnbull 1989).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import floor, inf, log10, sqrt
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from .statistics import Estimated, Outcomes, estimate, quantile

Verdict = Literal["better", "worse", "no difference", "undecided", "cannot tell", "open"]
LOOKS = (2, 3, 4, 6, 8, 12)  # in units of T
NODES = 120  # of the quadrature in each look
DOUBT = 0.01  # a comparison is futile if no value in the prediction interval of this level decides it
ORDINARY = 0.05  # the level of an interval that no test stands behind
RELATIVE_MARGIN = 0.05  # the default of `worth`: a share of the reference's error at the first look


@dataclass(frozen=True)
class Rules:
    """What is fixed before the first look.

    Parameters
    ----------
    tuning
        T: a claim is about methods with this many trials of tuning each.
    most
        N_max, the trials per method of the last look.
    worth
        The smallest difference that would change the choice, as a share of rows; by default 5 % of the reference's
        error at the first look.
    alpha
        The probability of any false "better" or "worse", over all contenders and looks.
    once
        One look at the end.

    """

    tuning: int = 8
    most: int = 48
    worth: float | None = None
    alpha: float = 0.05
    once: bool = False

    def __post_init__(self) -> None:
        if self.tuning < 1 or self.most < 2 * self.tuning:
            raise ValueError(
                f"{self.most} trials per method are fewer than two tunings of {self.tuning}: allow {2 * self.tuning} "
                "or more, or tune with fewer"
            )
        if self.worth is not None and not 0 < self.worth < 1:
            raise ValueError(f"worth is a difference of errors between 0 and 100 points, not {100 * self.worth:g}")
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha is a probability, 0 or more and below 1, not {self.alpha}")

    @property
    def looks(self) -> tuple[int, ...]:
        """The trials per method at each look."""
        return looks_to(self.tuning, self.most, self.once)


def looks_to(tuning: int, most: int, once: bool = False) -> tuple[int, ...]:
    """Return the planned looks up to a number of trials per method, which is the last."""
    return () if once and not most else (*(() if once else [f * tuning for f in LOOKS if f * tuning < most]), most)


@dataclass(frozen=True)
class Contrast:
    """A contender against the reference at its last look.

    `low` to `high` is the repeated confidence interval at `level`; negative values are in favour of the contender.
    `inner_low` to `inner_high` is the narrower one, of the level `inner`, that "no difference" has within `worth`.
    `edges` are the shared settings at whose edge the tuning mass lies; `why` explains an undecided contrast: `futile`,
    `rows` where more training cannot decide it, or `failed` where all trials of a method did. With level 0, which is
    left for a contender that came when all was used, the interval is the ordinary one and there is no verdict.
    """

    method: str
    difference: Estimated
    level: float
    verdict: Verdict
    worth: float
    edges: Sequence[str] = ()
    why: str = ""
    inner: float = 2 * ORDINARY

    @property
    def inner_low(self) -> float:
        return self.difference.value - self.difference.half_width(self.inner or 2 * ORDINARY)

    @property
    def inner_high(self) -> float:
        return self.difference.value + self.difference.half_width(self.inner or 2 * ORDINARY)

    @property
    def low(self) -> float:
        return self.difference.value - self.difference.half_width(self.level or ORDINARY)

    @property
    def high(self) -> float:
        return self.difference.value + self.difference.half_width(self.level or ORDINARY)


Edges = Callable[[str, int], Sequence[str]]  # of a method and its first n trials


def decide(
    outcomes: Mapping[str, Outcomes],
    rules: Rules,
    edges: Edges = lambda method, n: (),
    row_variance: float | None = None,
    futility: bool = True,
) -> list[dict[str, Contrast]]:
    """Return the contrasts at each look that the outcomes allow: a function of nothing else.

    Parameters
    ----------
    outcomes
        Per method, those of its trials; the first method is the reference.
    rules
        What was fixed before.
    edges
        Settings at the edge of their space, which make a verdict impossible at a look.
    row_variance
        Of simulations without rows.
    futility
        Whether to stop early where no verdict is in reach.

    """
    reference, *contenders = outcomes
    rejected, found, history = 0, dict[str, Contrast](), list[dict[str, Contrast]]()
    looks = rules.looks
    for k, n in enumerate(looks):
        still = [m for m in contenders if m not in found or found[m].verdict == "open"]
        if not still or min(len(outcomes[m]) for m in (reference, *still)) < n:
            break
        plain = outcomes[reference].first(n)
        worth = worth_of(rules, outcomes[reference])
        differences = {m: estimate(outcomes[m].first(n), plain, rules.tuning, row_variance) for m in still}
        failed = {m: plain.all_failed or outcomes[m].first(n).all_failed for m in still}
        at_edge = {m: tuple(dict.fromkeys([*edges(m, n), *edges(reference, n)])) for m in still}
        for m in sorted(still, key=lambda m: differences[m].p):
            difference = differences[m]
            level = levels(rules.alpha / (len(contenders) - rejected), looks, k)
            verdict: Verdict = "open"
            if not (at_edge[m] or failed[m]) and difference.p <= level:
                verdict = "better" if difference.value < 0 else "worse"
                rejected += 1
            inner = levels(2 * rules.alpha, looks, k)
            found[m] = Contrast(m, difference, level, verdict, worth, at_edge[m], inner=inner)
        alpha = rules.alpha / max(len(contenders) - rejected, 1)
        for m in still:
            if failed[m]:
                found[m] = replace(found[m], verdict="cannot tell", why="failed")
            elif found[m].verdict == "open":
                found[m] = _others(replace(found[m], level=levels(alpha, looks, k)), rules, k, alpha, futility)
        history.append({m: found[m] for m in contenders})
    return history


def _others(contrast: Contrast, rules: Rules, k: int, alpha: float, futility: bool) -> Contrast:
    """The contrast with the verdict of a look at which it is neither better nor worse."""
    d, last = contrast.difference, rules.looks[k] == rules.most
    if contrast.edges:
        return replace(contrast, verdict="cannot tell") if last else contrast
    if rules.alpha and max(abs(contrast.inner_low), abs(contrast.inner_high)) < contrast.worth:
        return replace(contrast, verdict="no difference")
    rows_alone = d.at(1_000_000)
    hopeless = rows_alone.half_width(2 * rules.alpha) >= contrast.worth and rows_alone.half_width(alpha) > abs(d.value)
    why = "rows" if hopeless else ""
    if last:
        return replace(contrast, verdict="undecided", why=why)
    if futility and _futile(contrast, rules, alpha):
        return replace(contrast, verdict="undecided", why=why or "futile")
    return contrast


def _futile(contrast: Contrast, rules: Rules, alpha: float) -> bool:
    """Whether no value that the last look may well have, given this one, would decide it."""
    d, final = contrast.difference, len(rules.looks) - 1
    end = d.at(rules.most)
    away = quantile(d.df, DOUBT / 2) * sqrt(max(d.points - end.points, 0.0))
    nearest, farthest = max(abs(d.value) - away, 0.0), abs(d.value) + away
    significant = end.half_width(levels(alpha, rules.looks, final))
    equivalent = contrast.worth - end.half_width(levels(2 * rules.alpha, rules.looks, final))
    return farthest < significant and nearest > equivalent


def worth_of(rules: Rules, reference: Outcomes) -> float:
    """Return the smallest difference that matters: as asked for, or from the reference's first trials alone."""
    if rules.worth is not None:
        return rules.worth
    first = rules.looks[0]
    error = estimate(reference.first(first), None, rules.tuning).value
    return _rounded(RELATIVE_MARGIN * error) or 1e-3


def levels(alpha: float, looks: Sequence[int], k: int) -> float:
    """Return the level of a two-sided test at look k, so that all looks together have the level alpha."""
    return _levels(round(alpha, 12), tuple(looks))[k]


@cache
def _levels(alpha: float, looks: tuple[int, ...]) -> tuple[float, ...]:
    """Levels by recursive quadrature of the process of scores that no earlier look has stopped.

    Between looks it has independent normal increments whose variance is the gain of information (Armitage, McPherson
    and Rowe 1969).
    """
    if alpha == 0:
        return (0.0,) * len(looks)
    found, spent, before = [], 0.0, 0.0
    x, mass = np.zeros(1), np.ones(1)  # nodes of the scores before a look, and their weighted density
    unit, unit_weights = np.polynomial.legendre.leggauss(NODES)
    for n in looks:
        t = n / looks[-1]
        now, step = spending(alpha, t), sqrt(t - before)

        def crossed(bound: float, x: np.ndarray = x, mass: np.ndarray = mass, step: float = step) -> float:
            return float(mass @ (ndtr((x - bound) / step) + ndtr((-x - bound) / step)))

        gain = max(now - spent, 1e-300)
        bound = brentq(lambda b, f=crossed, g=gain: np.log(max(f(b), 1e-320) / g), 0.0, 40.0 * sqrt(t), xtol=1e-10)
        found.append(float(2 * ndtr(-bound / sqrt(t))))
        nodes = bound * unit
        density = np.exp(-((nodes[:, None] - x) ** 2) / (2 * step**2)) / (step * sqrt(2 * np.pi)) @ mass
        x, mass, spent, before = nodes, density * bound * unit_weights, now, t
    return tuple(found)


def spending(alpha: float, information: float) -> float:
    """Return the part of a two-sided level that O'Brien and Fleming's type of spending has used at this information.

    Examples
    --------
    >>> from steppe.comparison.sequential import spending
    >>> round(spending(0.05, 1.0), 4), round(spending(0.05, 0.5), 4)
    (0.05, 0.0031)

    """
    return float(4 * ndtr(ndtri(alpha / 4) / sqrt(information)))


def _rounded(value: float) -> float:
    """One significant digit."""
    return 0.0 if value <= 0 or value == inf else round(value, -floor(log10(value)))
