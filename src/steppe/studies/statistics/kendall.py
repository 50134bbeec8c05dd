"""Kendall's tau over pairs of runs.

tau-a is Eq. 4 of Andriushchenko et al. 2023: a pair that is tied in either ranking counts zero and stays in the
denominator. tau-b (Kendall 1945, SciPy's default) removes tied pairs from the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Signs = NDArray[np.int8]


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
    score = int(scores(a, ranks(b)[None], group)[0])
    return Pairs(alike(group, group), alike(group, a), alike(group, b), score)


def alike(group: Ints, values: Floats | Ints) -> int:
    """How many pairs within groups have equal values."""
    size = np.unique(np.stack([group, ranks(values)]), axis=1, return_counts=True)[1]
    return int((size * (size - 1)).sum()) // 2


def scores(x: Floats, y: Ints, group: Ints) -> Ints:
    """Concordant minus discordant pairs within groups of x and each line of y, in n log n steps (Knight 1966).

    Lines are ranks; negative ones are missing, and in no pair. In the order of x, and of y where x is tied, a pair is
    discordant where the larger y comes first.
    """
    n = len(x)
    order = np.lexsort((x, group))
    x, group, y = x[order], group[order], y[:, order]
    levels = int(y.max(initial=0)) + 1
    new_group = np.append(True, np.diff(group) > 0)[:n]
    new = new_group | np.append(True, np.diff(x) > 0)[:n]
    y = np.where(y < 0, y, y + levels * (np.cumsum(new_group) - 1))  # pairs of two groups are concordant
    tied_both = np.zeros(len(y), dtype=np.int64)
    if not new.all():
        size = int(y.max(initial=0)) + 2
        key = np.sort((np.cumsum(new) - 1) * size + y + 1, axis=1)
        y = key % size - 1
        tied_both = _tied(key, y >= 0)
    there = y >= 0
    every, tied_x = (
        _pairs(np.add.reduceat(there, np.flatnonzero(at), axis=1, dtype=np.int64)) for at in (new_group, new)
    )
    ordered = np.sort(y, axis=1)
    found: Ints = every - tied_x - _tied(ordered, ordered >= 0) + tied_both - 2 * inversions(y)
    return found


def _pairs(count: Ints) -> Ints:
    found: Ints = (count * (count - 1)).sum(1) // 2
    return found


def _tied(ordered: Ints, there: NDArray[np.bool_]) -> Ints:
    """Pairs of equal values in each line of sorted ones."""
    place = np.arange(ordered.shape[1])
    first = np.where(np.diff(ordered, axis=1, prepend=-2) > 0, place, 0)
    found: Ints = ((place - np.maximum.accumulate(first, axis=1)) * there).sum(1)
    return found


def inversions(y: Ints) -> Ints:
    """Pairs of a larger value before a smaller one in each line; negative values are missing, and in no pair.

    Blocks of at most 33 values are compared value by value, and pairs of blocks by where the values of the first are
    once both are sorted.
    """
    lines, n = y.shape
    doublings = (max(n - 1, 0) // 32).bit_length()
    block = -(-max(n, 1) // 2**doublings)
    size = block << doublings
    kind = np.int16 if 2 * int(y.max(initial=0)) + 2 < np.iinfo(np.int16).max else np.int32  # which sort faster
    before = np.full((lines, size), -2, dtype=kind)  # even, and behind all values where it is missing: odd, and above
    before[:, :n] = 2 * np.maximum(y, -1)
    after = np.where(before < 0, np.iinfo(kind).max, before + 1).astype(kind)
    first, second = before.reshape(lines, -1, block), after.reshape(lines, -1, block)
    counts = np.zeros(first.shape, dtype=np.uint8)
    for apart in range(1, block):
        counts[..., apart:] += first[..., :-apart] > second[..., apart:]
    found: Ints = counts.reshape(lines, -1).sum(1, dtype=np.int64)
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
