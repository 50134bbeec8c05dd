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
