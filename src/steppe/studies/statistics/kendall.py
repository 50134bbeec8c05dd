"""Kendall's tau over pairs of runs, and its distribution under resampling and permutation.

tau-a is Eq. 4 of Andriushchenko et al. 2023: a pair that is tied in either ranking counts zero and stays in the
denominator. tau-b (Kendall 1945, SciPy's default) removes tied pairs from the denominator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations as every_order
from math import erfc, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Signs = NDArray[np.int8]
Weights = NDArray[np.float32]

MAX_PERMUTED = 200  # runs: above this the normal limit is closer to the truth than a sample of permutations
MAX_EXACT = 8  # runs per group up to which all orders are enumerated: 8! = 40320

Ties = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # per group, how often each value of x and of y occurs


@dataclass(frozen=True)
class Pairs:
    """Counts of pairs of runs: all, tied in x, tied in y, and the score (concordant minus discordant)."""

    all: int
    tied_x: int
    tied_y: int
    score: int

    @property
    def tau_a(self) -> float:
        """tau-a (Eq. 4); nan if there is no pair."""
        return self.score / self.all if self.all else float("nan")

    @property
    def tau_b(self) -> float:
        """tau-b, as in SciPy; nan if all pairs are tied in x or in y."""
        untied = (self.all - self.tied_x) * (self.all - self.tied_y)
        return self.score / sqrt(untied) if untied else float("nan")


def tau_a(x: ArrayLike, y: ArrayLike) -> float:
    """Kendall's tau-a (Eq. 4): tied pairs count zero and stay in the denominator."""
    return pairs(x, y).tau_a


def tau_b(x: ArrayLike, y: ArrayLike) -> float:
    """Kendall's tau-b: tied pairs leave the denominator."""
    return pairs(x, y).tau_b


def pairs(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Pairs:
    """Count the pairs of runs; with groups, only pairs within a group."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"x and y must be two lists of the same length, not of shapes {a.shape} and {b.shape}")
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("a value is missing (nan): drop that run, or use correlate.kendall, which drops and counts it")
    within = same_group(np.zeros(len(a), dtype=np.int64) if groups is None else ranks(groups), len(a))
    sign_x, sign_y = signs(a), signs(b)
    counts = (within, within & (sign_x == 0), within & (sign_y == 0), sign_x * sign_y * within)
    return Pairs(*(int(each.sum()) // 2 for each in counts))  # a matrix holds each pair twice


def signs(x: Floats | Ints) -> Signs:
    """sign(x_i - x_j) for all i and j."""
    above = x[:, None] > x
    matrix: Signs = above.view(np.int8) - above.T.view(np.int8)
    return matrix


def same_group(label: Ints, n: int) -> NDArray[np.bool_]:
    """Whether i and j are two different runs of the same group, for all i and j."""
    if label.shape != (n,):
        raise ValueError(f"each run has one group: there are {n} runs and {label.size} groups")
    matrix: NDArray[np.bool_] = (label[:, None] == label) & ~np.eye(n, dtype=bool)
    return matrix


def ranks(values: ArrayLike) -> Ints:
    """0 for the smallest value, 1 for the next; equal values have equal ranks."""
    return np.unique(np.asarray(values), return_inverse=True)[1].reshape(-1).astype(np.int64)


def bootstrap_weights(label: Ints, times: int, seed: int) -> Weights:
    """How often each run occurs in each bootstrap sample (one row per sample), resampled within groups."""
    rng = np.random.default_rng([seed, 1])
    weights = np.zeros((times, len(label)), dtype=np.float32)
    for group in np.unique(label):
        rows = np.flatnonzero(label == group)
        weights[:, rows] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=times)
    return weights


def bootstrap_taus(weights: Weights, x: Floats, y: Floats, label: Ints) -> Floats:
    """tau-a of each bootstrap sample over pairs of different runs; nan for a sample without such a pair.

    A run that occurs twice forms no pair with itself: counted as ties, such pairs would pull every sample to zero.
    """
    agree = (signs(x) * signs(y) * same_group(label, len(x))).astype(np.float32)
    score = np.einsum("ri,ri->r", weights @ agree, weights).astype(np.float64)
    count = float((np.bincount(label).astype(np.float64) ** 2).sum()) - np.einsum("ri,ri->r", weights, weights)
    taus: Floats = np.divide(score, count, out=np.full(len(weights), np.nan), where=count > 0)
    return taus


def jackknife_error(x: Floats, y: Floats, label: Ints) -> float:
    """The jackknife's standard error of tau-a, stratified by group."""
    per_run = (signs(x) * signs(y) * same_group(label, len(x))).sum(1)  # the score of the pairs that a run is in
    size = np.bincount(label)
    score, count = per_run.sum() / 2, float((size * (size - 1)).sum()) / 2
    left = np.maximum(count - (size - 1), 1)[label]
    without = (score - per_run) / left
    mean = np.bincount(label, without) / np.maximum(size, 1)
    squares = np.bincount(label, (without - mean[label]) ** 2)
    return sqrt(float((squares * (size - 1) / np.maximum(size, 1)).sum()))


def permutation_p(score: int, x: Floats, y: Floats, label: Ints, times: int, seed: int) -> tuple[float, str]:
    """The two-sided p-value of a score when y is permuted within groups, and how it was computed.

    The permuted score depends on the values only through their ties, so one cached set of permutations serves all
    measures without ties.
    """
    ties: Ties = tuple((_tie_sizes(x[label == group]), _tie_sizes(y[label == group])) for group in np.unique(label))
    if max(sum(a) for a, _ in ties) <= MAX_EXACT:
        values, share = _exact_scores(ties)
        return min(1.0, float(share[np.abs(values) >= abs(score)].sum())), "exact"
    if len(x) <= MAX_PERMUTED:
        null = _permuted_scores(ties, times, seed)
        # the observed order is one of the permutations (Phipson and Smyth 2010), so p is never 0
        return (1 + int((np.abs(null) >= abs(score)).sum())) / (1 + times), f"{times} permutations"
    spread = sqrt(sum(_score_variance(a, b) for a, b in ties))
    return (erfc(abs(score) / spread / sqrt(2)) if spread else 1.0), "normal limit of the permutations"


def _tie_sizes(values: Floats) -> tuple[int, ...]:
    return tuple(np.bincount(ranks(values)).tolist())


@lru_cache(maxsize=64)
def _exact_scores(ties: Ties) -> tuple[Ints, Floats]:
    """All scores that permutations give, and the share of permutations per score; groups are independent."""
    total = {0: 1.0}
    for a, b in ties:
        x, y = _as_ranks(a), _as_ranks(b)
        orders = np.array(list(every_order(range(len(x)))), dtype=np.int64).reshape(-1, len(x))
        values, counts = np.unique(_scores(x, y[orders]), return_counts=True)
        joined: Counter[int] = Counter()
        for before, share in total.items():
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                joined[before + value] += share * count / len(orders)
        total = dict(joined)
    return np.array(list(total), dtype=np.int64), np.array(list(total.values()))


@lru_cache(maxsize=64)
def _permuted_scores(ties: Ties, times: int, seed: int) -> Ints:
    rng = np.random.default_rng([seed, 2])
    null = np.zeros(times, dtype=np.int64)
    for a, b in ties:
        y = _as_ranks(b)
        null += _scores(_as_ranks(a), rng.permuted(np.broadcast_to(y, (times, len(y))), axis=1))
    return null


def _as_ranks(sizes: tuple[int, ...]) -> Ints:
    return np.repeat(np.arange(len(sizes)), sizes)


def _scores(x: Ints, permuted: Ints) -> Ints:
    """The score of each row of `permuted` against x."""
    scores = np.zeros(len(permuted), dtype=np.float32)
    sign_x, y = signs(x).astype(np.float32), permuted.T.astype(np.float32)
    for i in range(len(x) - 1):
        scores += sign_x[i + 1 :, i] @ np.sign(y[i + 1 :] - y[i])
    return scores.astype(np.int64)


def _score_variance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """The variance of the score over all permutations, with ties in both rankings (Kendall 1948)."""
    n = sum(a)
    if n < 2:
        return 0.0

    def sums(sizes: tuple[int, ...]) -> tuple[float, float, float]:
        t = np.array(sizes, dtype=np.float64)
        return (
            float((t * (t - 1) * (2 * t + 5)).sum()),
            float((t * (t - 1)).sum()),
            float((t * (t - 1) * (t - 2)).sum()),
        )

    (five_a, two_a, three_a), (five_b, two_b, three_b) = sums(a), sums(b)
    first = (n * (n - 1) * (2 * n + 5) - five_a - five_b) / 18
    third = three_a * three_b / (9 * n * (n - 1) * (n - 2)) if n > 2 else 0.0
    return first + two_a * two_b / (2 * n * (n - 1)) + third
