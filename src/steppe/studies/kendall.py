"""Kendall's tau: how often two rankings agree on a pair of runs, less how often they disagree.

tau-a is Eq. 4 of Andriushchenko et al. 2023: a pair that is tied in either ranking counts zero, and still counts in the
denominator. tau-b (Kendall 1945, and what SciPy gives) takes tied pairs out of the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Signs = NDArray[np.int8]


@dataclass(frozen=True)
class Pairs:
    """How the pairs of runs compare: in all, tied in x, tied in y, and agreements less disagreements."""

    all: int
    tied_x: int
    tied_y: int
    score: int

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
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"two rankings of the same runs are two lists of one length, not of shapes {a.shape}, {b.shape}"
        )
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("a value is missing (nan): leave out the run, or use correlate.kendall, which does and counts")
    together = same_group(np.zeros(len(a), dtype=np.int64) if groups is None else ranks(groups), len(a))
    one, other = signs(a), signs(b)
    counts = (together, together & (one == 0), together & (other == 0), one * other * together)
    return Pairs(*(int(each.sum()) // 2 for each in counts))  # each pair stands twice in a matrix


def signs(x: Floats | Ints) -> Signs:
    """The sign of x_i - x_j for all i and j."""
    above = x[:, None] > x
    found: Signs = above.view(np.int8) - above.T.view(np.int8)
    return found


def same_group(label: Ints, n: int) -> NDArray[np.bool_]:
    """Whether i and j are two runs of one group, for all i and j."""
    if label.shape != (n,):
        raise ValueError(f"each run has one group: there are {n} runs and {label.size} groups")
    found: NDArray[np.bool_] = (label[:, None] == label) & ~np.eye(n, dtype=bool)
    return found


def ranks(values: ArrayLike) -> Ints:
    """0 for the smallest value, 1 for the next; equal values have the same."""
    return np.unique(np.asarray(values), return_inverse=True)[1].reshape(-1).astype(np.int64)
