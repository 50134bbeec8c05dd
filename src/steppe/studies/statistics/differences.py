"""The errors of differences: paired, unpaired, and over test rows; what they can show, and what more it would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite, log, nan, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, nctdtrinc, stdtrit

from .design import determines
from .kendall import Floats, Ints, ranks
from .spread import CONFIDENCE, NORMAL, POWER, Part, Spread

ALIKE = 0.5  # level of the test that variances of cells differ
FEWEST = 3  # pairs: the spread of two differences is a coin's
FEWEST_LEVELS = 3  # of a setting that is a sample of its own
MOST = 1000  # times as many levels: more are no advice
ROUNDING = 1e-9  # values closer than this are equal


@dataclass(frozen=True)
class Cells:
    """Runs that differ in their seed alone: each run's cell, and the variance within each with its freedom."""

    of: Ints
    variances: Floats
    freedoms: Floats

    @property
    def pooled(self) -> Part | None:
        """The variance of all cells together; None where Bartlett's test (1937) gives them different ones.

        Its level is 50 %: with three seeds it sees little, and pooling unlike variances makes false verdicts.
        """
        freedom = float(self.freedoms.sum())
        if len(self.freedoms) < 2 or not freedom:
            return None
        together = float((self.variances * self.freedoms).sum()) / freedom
        if not together or not (self.variances > 0).all():
            return None
        scale = 1 + (float((1 / self.freedoms).sum()) - 1 / freedom) / (3 * (len(self.freedoms) - 1))
        unlike = (freedom * log(together) - float((self.freedoms * np.log(self.variances)).sum())) / scale
        return Part("seed", 0, freedom, together) if chdtrc(len(self.freedoms) - 1, unlike) > ALIKE else None


def cells_of(codes: Ints, values: Floats) -> Cells:
    """The cells of a table by configuration, and the variances of a target within them."""
    known = np.isfinite(values)
    size, total = (np.bincount(codes[known], w) for w in (None, values[known]))
    mean = np.divide(total, size, out=np.zeros(len(size)), where=size > 0)
    squares = np.bincount(codes[known], (values[known] - mean[codes[known]]) ** 2)
    several = size > 1
    freedoms = (size[several] - 1).astype(np.float64)
    return Cells(codes, squares[several] / freedoms, freedoms)


def paired_spread(
    d: Floats, configuration: Ints, seed: Ints, contexts: Mapping[str, Ints], step: float = 0.0
) -> Spread | None:
    """The error of a mean of paired differences; None for fewer than three.

    It is at least that of values that are rounded to a step: errors of a few hundred test rows are multiples of one
    row, and differences that are equal by chance would have no error at all.
    """
    n = len(d)
    if n < FEWEST:
        return None
    rounding = step**2 / (6 * n) if isfinite(step) else 0.0  # each value has variance step^2 / 12

    def part(name: str, codes: Ints) -> Part:
        of_level = np.bincount(ranks(codes), d - d.mean())  # sums over pairs, so that larger ones weigh more
        k = len(of_level)
        return Part(name, k, k - 1, max(float((of_level**2).sum()) * k / (k - 1) / n**2, rounding))

    each, k, m = np.arange(n), len(np.unique(configuration)), len(np.unique(seed))
    if k == 1:
        return Spread.of([], part("seed", each))
    main = part("", configuration)
    levels = {name: len(np.unique(codes)) for name, codes in contexts.items()}
    settings = [part(name, codes) for name, codes in contexts.items() if FEWEST_LEVELS <= levels[name] < k]
    if m == 1 or determines(seed, configuration):
        return Spread.of(settings, main)
    larger = [p for p in settings if p.variance > main.variance]  # what configurations share is in theirs
    return Spread.of([main, part("seed", seed)], part("", each), larger)


def unpaired_spread(a: Floats, b: Floats, cell_a: Ints, cell_b: Ints, cells: Cells) -> Spread | None:
    """The error of a difference of means of runs that share nothing.

    Configurations are the sample of either side. With one on both, seeds are, and their variance is that of all cells
    of the table together, at least that of the two; or that of the two by Welch (1947), where cells differ.
    """
    sides = [(a, ranks(cell_a)), (b, ranks(cell_b))]
    if all(codes.max() == 0 for _, codes in sides):
        if min(len(a), len(b)) < 2:
            return None
        v, freedoms = [float(x.var(ddof=1)) for x in (a, b)], [len(a) - 1, len(b) - 1]
        own, pooled, each = float(np.average(v, weights=freedoms)), cells.pooled, [v[0] / len(a), v[1] / len(b)]
        levels = min(len(a), len(b))
        if pooled is not None:
            variance = max(own, pooled.variance) * (1 / len(a) + 1 / len(b))
            return Spread.of([], Part("seed", levels, pooled.freedom, variance))
        freedom = sum(each) ** 2 / sum(e**2 / f for e, f in zip(each, freedoms, strict=True)) if sum(each) else 1.0
        return Spread.of([], Part("seed", levels, freedom, sum(each)))
    parts = []
    for values, codes in sides:
        codes = codes if codes.max() else np.arange(len(values))
        if len(np.unique(codes)) < FEWEST:
            return None
        spread = paired_spread(values, codes, np.zeros_like(codes), {})
        assert spread is not None
        parts.append(spread.shared[0])
    larger, smaller = sorted(parts, key=lambda p: -p.variance)
    return Spread.of([], larger, [smaller])


def row_part(ours: NDArray[np.bool_], theirs: NDArray[np.bool_], *, paired: bool) -> Part:
    """What the test rows add to the variance of a difference of errors.

    The variance over rows holds what single runs do on single rows, which is in that over runs already: what the rows
    leave of it once both means are removed is taken off.
    """
    rows = ours.shape[1]
    difference = ours.mean(0) - theirs.mean(0)
    sides = [ours.astype(np.float32) - theirs] if paired else [ours.astype(np.float32), theirs.astype(np.float32)]
    single = 0.0
    for w in sides:
        if len(w) > 1:
            left = w - w.mean(0) - w.mean(1, keepdims=True) + w.mean()
            single += float((left**2).sum()) / ((len(w) - 1) * (rows - 1)) / w.size
    return Part("test rows", rows, NORMAL, max(float(difference.var(ddof=1)) / rows - single, 0.0))


def share_interval(share: float, spread: Spread | None, n: int, pairs: int) -> tuple[float, float]:
    """The interval of a share of won pairs (Wilson 1927), with as many independent pairs as its error says.

    Where all pairs are won its error is zero, and `n` units count.
    """
    if spread is None:
        return nan, nan
    variance = spread.variance
    t = spread.half(1 - CONFIDENCE) / sqrt(variance) if variance else float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    n_eff = min(share * (1 - share) / variance, pairs) if variance and 0 < share < 1 else n
    middle, scale = share + t**2 / (2 * n_eff), 1 + t**2 / n_eff
    half = t * sqrt(share * (1 - share) / n_eff + t**2 / (4 * n_eff**2))
    return min((middle - half) / scale, share), max((middle + half) / scale, share)  # rounding puts 0 above itself


def smallest_step(values: Floats) -> float:
    """The smallest step between values: one test row, for errors."""
    steps = np.diff(np.unique(values[np.isfinite(values)]))
    return float(steps[steps > ROUNDING].min(initial=np.inf))


def detectable(spread: Spread, level: float) -> float:
    """The difference that is significant at a level with 80 % power.

    The noncentral t that has the interval's quantile at this level stands for sums of several.
    """
    if not spread.variance:
        return 0.0
    error = sqrt(spread.variance)
    quantile, low, high = spread.half(level) / error, 1.0, NORMAL
    for _ in range(40):
        middle = sqrt(low * high)
        low, high = (middle, high) if float(stdtrit(middle, 1 - level / 2)) > quantile else (low, middle)
    return float(nctdtrinc(low, 1 - POWER, quantile)) * error


def levels_needed(spread: Spread, level: float, bound: float) -> int:
    """How many levels of the sample that the error mostly comes from show a difference of `bound`; 0 if none do."""
    most = spread.dominant

    def shown(k: int) -> bool:
        ratio = most.levels / k
        parts = [
            replace(p, levels=k, freedom=p.freedom + k - most.levels, variance=p.variance * ratio) if p == most else p
            for p in spread.shared
        ]
        rest = replace(spread.residual, variance=spread.residual.variance * ratio)
        return detectable(Spread(parts, rest, spread.more), level) <= bound

    low = high = most.levels
    while not shown(high):
        low, high = high, 2 * high
        if high > MOST * most.levels:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high
