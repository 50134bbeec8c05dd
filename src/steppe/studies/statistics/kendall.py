"""Kendall's tau over pairs of runs.

tau-a is Eq. 4 of Andriushchenko et al. 2023: a pair that is tied in either ranking counts zero and stays in the
denominator. tau-b (Kendall 1945, SciPy's default) removes tied pairs from the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Signs = NDArray[np.int8]

MISSING = -1
IN_CACHE = 1 << 17  # numbers that are compared at a time


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
        return self.score / self.all if self.all else nan

    @property
    def tau_b(self) -> float:
        """tau-b, as in SciPy; nan if all pairs are tied in x or in y."""
        untied = (self.all - self.tied_x) * (self.all - self.tied_y)
        return self.score / sqrt(untied) if untied else nan


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
        raise ValueError("a value is missing (nan): drop that run, or use findings, which drops and counts it")
    group = np.zeros(len(a), dtype=np.int64) if groups is None else ranks(groups)
    if group.shape != a.shape:
        raise ValueError(f"each run has one group: there are {len(a)} runs and {group.size} groups")
    score = int(scores(a[None], ranks(b)[None], group)[0, 0])
    return Pairs(alike(group, group), alike(group, a), alike(group, b), score)


def alike(group: Ints, values: Floats | Ints) -> int:
    """How many pairs within groups have equal values."""
    size = np.unique(np.stack([group, ranks(values)]), axis=1, return_counts=True)[1]
    return int((size * (size - 1)).sum()) // 2


def scores(x: Floats, y: Ints, group: Ints) -> Ints:
    """Concordant minus discordant pairs within groups, of each line of x with each line of y (Knight 1966).

    Lines of y are ranks; negative ones are missing, and in no pair. In the order of x, and of y where x is tied, a pair
    is discordant where the larger y comes first: they are counted in n log n steps.
    """
    n, block = len(group), ranks(group)
    if n < 2:
        return np.zeros((len(x), len(y)), dtype=np.int64)
    levels = int(y.max(initial=0)) + 1
    kind = smallest(levels * (int(block.max(initial=0)) + 1))
    y = np.where(y < 0, MISSING, y + levels * block).astype(kind)  # pairs of two groups are concordant
    there, whole = y >= 0, bool((y >= 0).all())
    ordered = np.sort(y, axis=1)
    tied_y = _tied(ordered, ordered >= 0)
    every = alike(block, block) if whole else _pairs(there[:, np.argsort(block)], np.sort(block))
    lines, tied = np.empty((len(x), *y.shape), dtype=kind), np.empty((len(x), len(y)), dtype=np.int64)
    for i, values in enumerate(x):
        order = np.lexsort((values, block))
        sorted_x, sorted_block = values[order], block[order]
        new = (sorted_x[1:] != sorted_x[:-1]) | (sorted_block[1:] != sorted_block[:-1])
        same = np.append(0, np.cumsum(new))  # the code of a group and a value, in the order of x
        lines[i] = y[:, order]
        tied[i] = alike(block, values) if whole else _pairs(there[:, order], same)
        if not new.all():
            size = int(y.max()) + 2
            key = np.sort(same * size + lines[i] + 1, axis=1)
            lines[i] = key % size - 1
            tied[i] -= _tied(key, lines[i] >= 0)
    found: Ints = every - tied_y - tied - 2 * inversions(lines.reshape(-1, n)).reshape(tied.shape)
    return found


def smallest(most: int) -> type[np.signedinteger[Any]]:
    """The smallest type of integers, which sorts fastest, for twice as many values and a few more."""
    return np.int16 if 2 * most + 4 < np.iinfo(np.int16).max else np.int32


def _pairs(there: NDArray[np.bool_], same: Ints) -> Ints:
    """Pairs of the present ones with the same value, which are side by side, in each line."""
    first = np.flatnonzero(np.diff(same, prepend=-1))
    count = np.add.reduceat(there, first, axis=1, dtype=np.int64)
    found: Ints = (count * (count - 1)).sum(1) // 2
    return found


def _tied(ordered: NDArray[Any], there: NDArray[np.bool_]) -> Ints:
    """Pairs of equal values in each line of sorted ones."""
    place = np.arange(ordered.shape[1])
    first = np.where(np.diff(ordered, axis=1, prepend=-2) > 0, place, 0)
    found: Ints = ((place - np.maximum.accumulate(first, axis=1)) * there).sum(1)
    return found


def inversions(y: NDArray[Any]) -> Ints:
    """Pairs of a larger value before a smaller one in each line; negative values are missing, and in no pair.

    Blocks of at most 65 values are compared value by value, and pairs of blocks by where the values of the first are
    once both are sorted.
    """
    lines, n = y.shape
    if lines > (step := max(1, IN_CACHE // max(n, 1))):
        return np.concatenate([inversions(y[i : i + step]) for i in range(0, lines, step)])
    doublings = (max(n - 1, 0) // 64).bit_length()
    block = -(-max(n, 1) // 2**doublings)
    size = block << doublings
    kind = smallest(int(y.max(initial=0)) + 1)
    before = np.full((lines, size), 2 * MISSING, dtype=kind)  # even; after them odd, and missing ones above all
    np.multiply(y, 2, out=before[:, :n], casting="unsafe")
    after = np.where(before < 0, np.iinfo(kind).max, before + 1).astype(kind)
    first, second = (np.ascontiguousarray(each.T).reshape(-1, block, lines) for each in (before, after))
    counts = np.zeros(first.shape, dtype=np.uint8)
    for apart in range(1, block):
        counts[:, apart:] += first[:, :-apart] > second[:, apart:]
    found: Ints = counts.reshape(-1, lines).sum(0, dtype=np.int64)
    while block < size:
        halves = (each.reshape(lines, -1, 2, block)[:, :, i] for i, each in enumerate((before, after)))
        both = np.sort(np.concatenate([*halves], axis=-1), axis=-1)
        places = (both & 1 == 0).astype(np.float64) @ np.arange(2.0 * block)
        found += places.sum(1).astype(np.int64) - both.shape[1] * (block * (block - 1) // 2)
        block *= 2
    return found


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
