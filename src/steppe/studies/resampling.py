"""What chance does to tau: pools drawn again from a pool, runs shuffled against their values, values within errors."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import permutations as every_order
from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from .kendall import Floats, Ints, in_groups

Weights = NDArray[np.float32]

DENSE = 300  # runs up to which a pool is drawn again; of more, the jackknife covers as well and costs n log n
SHUFFLED = 200  # runs up to which y is shuffled; the normal limit is then closer to the truth than shuffles are
EXACT = 8  # runs a group up to which every order is looked at: 8! = 40320 of them
_AT_ONCE = 1 << 20  # entries that one sort of shuffled rows works on

Ties = tuple[tuple[int, ...], ...]


def resampled(label: Ints, times: int, seed: int) -> Weights:
    """How often each run is drawn when each group is drawn again from itself, with replacement; one row a draw.

    It depends on the sizes of groups alone, so that one set of draws serves all measures of a pool.
    """
    return _drawn(label.tobytes(), times, seed)


@lru_cache(maxsize=32)
def _drawn(labels: bytes, times: int, seed: int) -> Weights:
    label = np.frombuffer(labels, dtype=np.int64)
    draws = np.random.default_rng([seed, 1])
    weights = np.zeros((times, len(label)), dtype=np.float32)
    for group in np.unique(label):
        rows = np.flatnonzero(label == group)
        weights[:, rows] = draws.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=times)
    weights.flags.writeable = False
    return weights


def taus_of(weights: Weights, x: Floats, y: Floats, label: Ints) -> Floats:
    """tau-a of each drawn pool over pairs of different runs; nan where a draw has no such pair.

    A run that was drawn twice makes no pair with itself. Counted as ties, such pairs would pull every draw to zero.
    """
    signs = _signs(x) * _signs(y)
    if label.any():
        signs *= label[:, None] == label
    score = np.einsum("ri,ri->r", weights @ signs.astype(np.float32), weights).astype(np.float64)
    pairs = float((np.bincount(label).astype(np.float64) ** 2).sum()) - np.einsum("ri,ri->r", weights, weights)
    taus: Floats = np.divide(score, pairs, out=np.full(len(weights), np.nan), where=pairs > 0)
    return taus


def _signs(x: Floats) -> NDArray[np.int8]:
    above = x[:, None] > x
    found: NDArray[np.int8] = above.view(np.int8) - above.T.view(np.int8)
    return found


def jackknife(each: Ints, label: Ints) -> float:
    """The standard error of tau-a from leaving out one run at a time, group by group; of runs' scores."""
    size = np.bincount(label)
    score, pairs = each.sum() / 2, float((size * (size - 1)).sum()) / 2
    left = np.maximum(pairs - (size - 1), 1)[label]
    without = (score - each) / left
    mean = np.bincount(label, without) / np.maximum(size, 1)
    squares = np.bincount(label, (without - mean[label]) ** 2)
    return sqrt(float((squares * (size - 1) / np.maximum(size, 1)).sum()))


def some(label: Ints, most: int, draws: np.random.Generator) -> Ints:
    """Rows of about so many runs, picked blindly from all groups alike, 30 or all of each at the least."""
    size = np.bincount(label)
    order = np.lexsort((draws.random(len(label)), label))
    number = np.arange(len(label)) - np.repeat(np.cumsum(size) - size, size)  # within its group
    return np.sort(order[number < max(30, most // max(int((size > 0).sum()), 1))])


def chance(score: int, x: Floats, y: Floats, label: Ints, times: int, seed: int) -> tuple[float, str]:
    """How often shuffling y within groups gives a score as far from zero, and how that was found.

    The shuffled score depends on the values only through which ranks are tied, so one set of shuffles serves all
    measures without ties.
    """
    ties: Ties = tuple(part for _, a, b in in_groups(x, y, label) for part in (_sizes(a), _sizes(b)))
    largest = max((sum(part) for part in ties), default=0)
    if largest <= EXACT:
        values, share = _every_score(ties)
        return min(1.0, float(share[np.abs(values) >= abs(score)].sum())), "exact"
    if len(x) <= SHUFFLED:
        null = _shuffled_scores(ties, times, seed)
        # the order that was found is one of the possible ones (Phipson and Smyth 2010): never 0
        return (1 + int((np.abs(null) >= abs(score)).sum())) / (1 + times), f"{times} permutations"
    spread = sqrt(sum(_variance(a, b) for a, b in zip(ties[::2], ties[1::2], strict=True)))
    return (erfc(abs(score) / spread / sqrt(2)) if spread else 1.0), "normal limit of the permutations"


def _sizes(ranked: Ints) -> tuple[int, ...]:
    return tuple(np.bincount(ranked).tolist())


@lru_cache(maxsize=64)
def _every_score(ties: Ties) -> tuple[Ints, Floats]:
    """The scores that shuffling can give, and the share of orders that give each; groups are independent."""
    whole = {0: 1.0}
    for a, b in zip(ties[::2], ties[1::2], strict=True):
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
    for a, b in zip(ties[::2], ties[1::2], strict=True):
        x, y = _as_ranks(a), _as_ranks(b)
        rows = max(1, _AT_ONCE // max(len(x), 1))
        for first in range(0, times, rows):
            part = null[first : first + rows]
            part += _scores_of(x, draws.permuted(np.broadcast_to(y, (len(part), len(y))), axis=1))
    return null


def _as_ranks(sizes: tuple[int, ...]) -> Ints:
    return np.repeat(np.arange(len(sizes)), sizes)


def _scores_of(x: Ints, shuffled: Ints) -> Ints:
    """The score of each row of y against x, which ascends; every pair is looked at, many rows at a time.

    In bytes, of which a processor compares many at once: for a few hundred runs faster than any sorting.
    """
    n = len(x)
    small = np.uint8 if shuffled.max(initial=0) < 256 else np.uint16
    y = np.ascontiguousarray(shuffled.T.astype(small))  # a run a row, so that whole rows are compared
    found = np.zeros(len(shuffled), dtype=np.int64)
    for i in range(n - 1):
        behind = int(np.searchsorted(x, x[i], side="right"))  # those tied with it in x make no pair
        for first in range(behind, n, 255):  # as many as a byte can count
            those = y[first : min(first + 255, n)]
            found += np.add.reduce(those > y[i], axis=0, dtype=np.uint8)
            found -= np.add.reduce(those < y[i], axis=0, dtype=np.uint8)
    return found


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
