"""What chance does to tau: pools drawn again from a pool, and runs shuffled against their values."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import permutations as every_order
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from .kendall import Floats, Ints, ranks, same_group, signs

Weights = NDArray[np.float32]

SHUFFLED = 200  # runs up to which y is shuffled; the normal limit is then closer to the truth than shuffles are
EXACT = 8  # runs a group up to which every order is looked at: 8! = 40320 of them

Ties = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # for each group, how often each value of x and of y occurs


def resampled(label: Ints, times: int, seed: int) -> Weights:
    """How often each run is drawn when each group is drawn again from itself, with replacement; one row a draw."""
    draws = np.random.default_rng([seed, 1])
    weights = np.zeros((times, len(label)), dtype=np.float32)
    for group in np.unique(label):
        rows = np.flatnonzero(label == group)
        weights[:, rows] = draws.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=times)
    return weights


def taus_of(weights: Weights, x: Floats, y: Floats, label: Ints) -> Floats:
    """tau-a of each drawn pool over pairs of different runs; nan where a draw has no such pair.

    A run that was drawn twice makes no pair with itself. Counted as ties, such pairs would pull every draw to zero.
    """
    agree = (signs(x) * signs(y) * same_group(label, len(x))).astype(np.float32)
    score = np.einsum("ri,ri->r", weights @ agree, weights).astype(np.float64)
    pairs = float((np.bincount(label).astype(np.float64) ** 2).sum()) - np.einsum("ri,ri->r", weights, weights)
    taus: Floats = np.divide(score, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)
    return taus


def jackknife(x: Floats, y: Floats, label: Ints) -> float:
    """The standard error of tau-a from leaving out one run at a time, group by group."""
    each = (signs(x) * signs(y) * same_group(label, len(x))).sum(1)  # of each run, over the pairs that it is in
    size = np.bincount(label)
    score, pairs = each.sum() / 2, float((size * (size - 1)).sum()) / 2
    left = np.maximum(pairs - (size - 1), 1)[label]
    without = (score - each) / left
    mean = np.bincount(label, without) / np.maximum(size, 1)
    squares = np.bincount(label, (without - mean[label]) ** 2)
    return sqrt(float((squares * (size - 1) / np.maximum(size, 1)).sum()))


def chance(score: int, x: Floats, y: Floats, label: Ints, times: int, seed: int) -> tuple[float, str]:
    """How often shuffling y within groups gives a score as far from zero, and how that was found.

    The shuffled score depends on the values only through which ranks are tied, so one set of shuffles serves all
    measures without ties.
    """
    ties: Ties = tuple((_sizes(x[label == group]), _sizes(y[label == group])) for group in np.unique(label))
    if max(sum(a) for a, _ in ties) <= EXACT:
        values, share = _every_score(ties)
        return min(1.0, float(share[np.abs(values) >= abs(score)].sum())), "exact"
    if len(x) <= SHUFFLED:
        null = _shuffled_scores(ties, times, seed)
        # the order that was found is one of the possible ones (Phipson and Smyth 2010): never 0
        return (1 + int((np.abs(null) >= abs(score)).sum())) / (1 + times), f"{times} permutations"
    spread = sqrt(sum(_variance(a, b) for a, b in ties))
    return (erfc(abs(score) / spread / sqrt(2)) if spread else 1.0), "normal limit of the permutations"


def _sizes(values: Floats) -> tuple[int, ...]:
    return tuple(np.bincount(ranks(values)).tolist())


@lru_cache(maxsize=64)
def _every_score(ties: Ties) -> tuple[Ints, Floats]:
    """The scores that shuffling can give, and the share of orders that give each; groups are independent."""
    whole = {0: 1.0}
    for a, b in ties:
        x, y = _as_ranks(a), _as_ranks(b)
        orders = np.array(list(every_order(range(len(x)))), dtype=np.int64).reshape(-1, len(x))
        values, counts = np.unique(_scores_of(x, y[orders]), return_counts=True)
        joined: Counter[int] = Counter()
        for before, share in whole.items():
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                joined[before + value] += share * count / len(orders)
        whole = dict(joined)
    return np.array(list(whole), dtype=np.int64), np.array(list(whole.values()))


@lru_cache(maxsize=64)
def _shuffled_scores(ties: Ties, times: int, seed: int) -> Ints:
    draws = np.random.default_rng([seed, 2])
    null = np.zeros(times, dtype=np.int64)
    for a, b in ties:
        y = _as_ranks(b)
        null += _scores_of(_as_ranks(a), draws.permuted(np.broadcast_to(y, (times, len(y))), axis=1))
    return null


def _as_ranks(sizes: tuple[int, ...]) -> Ints:
    return np.repeat(np.arange(len(sizes)), sizes)


def _scores_of(x: Ints, shuffled: Ints) -> Ints:
    """The score of each row of `shuffled` against x."""
    found = np.zeros(len(shuffled), dtype=np.float32)
    against, y = signs(x).astype(np.float32), shuffled.T.astype(np.float32)
    for i in range(len(x) - 1):
        found += against[i + 1 :, i] @ np.sign(y[i + 1 :] - y[i])
    return found.astype(np.int64)


def _variance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """Of the score over all orders, ties in both rankings regarded (Kendall, Rank Correlation Methods, 1948)."""
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
