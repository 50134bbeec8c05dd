"""Kendall's tau in n log n: how often two rankings agree on a pair of runs, less how often they disagree.

tau-a is Eq. 4 of Andriushchenko et al. 2023: a pair that is tied in either ranking counts zero, and still counts in the
denominator. tau-b (Kendall 1945, and what SciPy gives) takes tied pairs out of the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BITS = 4  # of a digit in which entries are compared: more make larger tables, fewer make more of them


@dataclass(frozen=True)
class Pairs:
    """How the pairs of runs compare: in all, tied in x, tied in y, and agreements less disagreements."""

    all: int
    tied_x: int
    tied_y: int
    score: int

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            self.all + other.all, self.tied_x + other.tied_x, self.tied_y + other.tied_y, self.score + other.score
        )

    @property
    def tau_a(self) -> float:
        """Eq. 4; nan where there is no pair."""
        return self.score / self.all if self.all else float("nan")

    @property
    def tau_b(self) -> float:
        """As SciPy has it; nan where one side is the same in every pair."""
        free = (self.all - self.tied_x) * (self.all - self.tied_y)
        return self.score / sqrt(free) if free else float("nan")


def tau_a(x: ArrayLike, y: ArrayLike) -> float:
    """Eq. 4: ties count zero, and the denominator does not shrink."""
    return pairs(x, y).tau_a


def tau_b(x: ArrayLike, y: ArrayLike) -> float:
    """Tied pairs leave the denominator, each side's its own."""
    return pairs(x, y).tau_b


def pairs(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Pairs:
    """The pairs of runs counted; with groups, only pairs whose runs are in the same group."""
    return pairs_and_scores(x, y, groups)[0]


def scores(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Ints:
    """For each run, agreements less disagreements over the pairs that it is in; half their sum is a pool's score."""
    return pairs_and_scores(x, y, groups)[1]


def pairs_and_scores(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> tuple[Pairs, Ints]:
    """Both; all groups are counted at once, however many there are."""
    xs, ys, label = _checked(x, y, groups)
    a, b = ranks(xs), ranks(ys)
    of_b = b.max(initial=0) + 1
    grouped_a, grouped_b = label * (a.max(initial=0) + 1) + a, label * of_b + b
    order = np.argsort(
        grouped_a * of_b + b, kind="stable"
    )  # within a tie of a, b ascends: such pairs are no inversions
    each = np.empty_like(a)
    each[order] = -2 * inversions(grouped_b[order])  # nor do pairs of two groups, which ascend
    others, tied_b = _others_equal(label), _others_equal(ranks(grouped_b))
    tied_a, both = np.empty_like(a), np.empty_like(a)
    for into, values in ((tied_a, grouped_a), (both, grouped_a * of_b + b)):
        into[order] = _others_equal(_ranks_of_sorted(values[order]))
    each += others - tied_a - tied_b + both
    return Pairs(*(int(v.sum()) // 2 for v in (others, tied_a, tied_b, each))), each


def in_groups(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> list[tuple[Ints, Ints, Ints]]:
    """For each group, its rows and their two rankings, in which equal values have equal ranks."""
    a, b, label = _checked(x, y, groups)
    order = np.argsort(label, kind="stable")
    everything = np.split(order, np.cumsum(np.bincount(label))[:-1]) if len(a) else []
    return [(rows, ranks(a[rows]), ranks(b[rows])) for rows in everything]


def _checked(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> tuple[Floats, Floats, Ints]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"two rankings of the same runs are two lists of one length, not of shapes {a.shape}, {b.shape}"
        )
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("a value is missing (nan): leave out the run, or use correlate.kendall, which does and counts")
    label = np.zeros(len(a), dtype=np.int64) if groups is None else ranks(groups)
    if label.shape != a.shape:
        raise ValueError(f"each run has one group: there are {len(a)} runs and {label.size} groups")
    return a, b, label


def ranks(values: ArrayLike) -> Ints:
    """0 for the smallest value, 1 for the next; equal values have the same."""
    return np.unique(np.asarray(values), return_inverse=True)[1].reshape(-1).astype(np.int64)


def inversions(values: NDArray[Any]) -> Ints:
    """For each entry, how many later ones are smaller and earlier ones larger.

    Entry i of a permutation with value v and s smaller ones before it has i - s larger ones before it and v - s smaller
    ones behind it. s is summed over digits, from the highest: an earlier entry is smaller by the first digit in which
    the two differ. With entries sorted by their higher digits, those that share them stand together.
    """
    n = len(values)
    place = np.argsort(values, kind="stable")  # of equal ones the earlier is the smaller: they are no inversion
    v = np.empty(n, dtype=np.int64)
    v[place] = np.arange(n)
    before = np.zeros(n, dtype=np.int64)
    place, left = np.arange(n), v
    digits = np.arange(1 << _BITS)[:, None]
    for shift in range((max(n - 1, 0).bit_length() - 1) // _BITS * _BITS, -1, -_BITS):
        digit = (left >> shift) & (len(digits) - 1)
        smaller = np.zeros((len(digits), n + 1), dtype=np.int32)  # [d, i]: of the first i entries, those with digit < d
        np.cumsum(digit < digits, axis=1, out=smaller[:, 1:], dtype=np.int32)
        start = left >> (shift + _BITS) << (shift + _BITS)  # as many entries have smaller higher digits
        before[place] += smaller[digit, np.arange(n)] - smaller[digit, start]
        if shift:
            order = np.argsort(left >> shift, kind="stable")
            left, place = left[order], place[order]
    found: Ints = np.arange(n) + v - 2 * before
    return found


def _others_equal(ranked: Ints) -> Ints:
    return np.bincount(ranked)[ranked] - 1


def _ranks_of_sorted(values: Ints) -> Ints:
    return np.cumsum(np.diff(values, prepend=values[:1]) > 0)
