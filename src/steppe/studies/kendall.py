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
    total = Pairs(0, 0, 0, 0)
    for rows, a, b in in_groups(x, y, groups):
        n = len(rows)
        total += Pairs(n * (n - 1) // 2, _tied(a), _tied(b), int(_scores(a, b).sum()) // 2)
    return total


def scores(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Ints:
    """For each run, agreements less disagreements over the pairs that it is in; half their sum is a pool's score."""
    found = np.zeros(len(np.asarray(x)), dtype=np.int64)
    for rows, a, b in in_groups(x, y, groups):
        found[rows] = _scores(a, b)
    return found


def in_groups(x: ArrayLike, y: ArrayLike, groups: ArrayLike | None) -> list[tuple[Ints, Ints, Ints]]:
    """For each group, its rows and their two rankings, in which equal values have equal ranks."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"two rankings of the same runs are two lists of one length, not of shapes {a.shape}, {b.shape}"
        )
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("a value is missing (nan): leave out the run, or use correlate.kendall, which does and counts")
    if groups is None:
        everything = [np.arange(len(a))]
    else:
        _, label = np.unique(np.asarray(groups), return_inverse=True)
        if label.shape != a.shape:
            raise ValueError(f"each run has one group: there are {len(a)} runs and {label.size} groups")
        order = np.argsort(label, kind="stable")
        everything = np.split(order, np.cumsum(np.bincount(label))[:-1]) if len(a) else []
    return [(rows, ranks(a[rows]), ranks(b[rows])) for rows in everything]


def ranks(values: ArrayLike) -> Ints:
    """0 for the smallest value, 1 for the next; equal values have the same."""
    return np.unique(np.asarray(values), return_inverse=True)[1].reshape(-1).astype(np.int64)


def inversions(rows: NDArray[Any]) -> Ints:
    """For each entry of each row, how many later ones are smaller and earlier ones larger: a merge sort that counts.

    All rows and all blocks of a level are merged by one stable sort; numpy's merges sorted runs in linear time.
    """
    n = rows.shape[-1]
    size = 1 << max(n - 1, 0).bit_length()
    flat = rows.reshape(-1, n)
    values: NDArray[Any] = np.full(
        (len(flat), size), np.iinfo(np.int64).max
    )  # what fills up is largest and last: in no inversion
    values[:, :n] = flat
    place: NDArray[Any] = np.broadcast_to(np.arange(size), values.shape)
    counts: NDArray[Any] = np.zeros(values.shape, dtype=np.int64)
    width = 1
    while width < size:
        blocks = (-1, 2 * width)
        order = np.argsort(values.reshape(blocks), axis=-1, kind="stable")
        left = order < width
        crossed = np.where(left, np.cumsum(~left, -1), width - np.cumsum(left, -1))
        values, place, counts = (
            np.take_along_axis(those.reshape(blocks), order, -1) for those in (values, place, counts)
        )
        counts += crossed
        values, place, counts = (those.reshape(-1, size) for those in (values, place, counts))
        width *= 2
    found = np.empty_like(counts)
    np.put_along_axis(found, place, counts, -1)
    return found[:, :n].reshape(rows.shape)


def _scores(a: Ints, b: Ints) -> Ints:
    order = np.lexsort((b, a))  # within a tie of a, b ascends: such pairs are no inversions
    against = np.empty_like(a)
    against[order] = inversions(b[order])
    both = _others_equal(ranks(a * (b.max(initial=0) + 1) + b))
    return len(a) - 1 - _others_equal(a) - _others_equal(b) + both - 2 * against


def _others_equal(ranked: Ints) -> Ints:
    return np.bincount(ranked)[ranked] - 1


def _tied(ranked: Ints) -> int:
    return int(_others_equal(ranked).sum()) // 2
