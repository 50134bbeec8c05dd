"""Pairs of runs that differ in one setting only: what tells the effect of a setting apart from all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kendall import Ints, ranks

_AT_ONCE = 1 << 20  # pairs in memory at a time


@dataclass(frozen=True)
class Neighbours:
    """Some pairs of runs with the same settings but one: the runs, the settings that they share, and the two values."""

    first: Ints
    second: Ints
    context: Ints
    change: Ints

    def __len__(self) -> int:
        return len(self.first)


def coded(columns: Sequence[NDArray[Any]]) -> list[Ints]:
    """Settings as numbers from 0, equal where the values are."""
    return [ranks([repr(v) for v in column]) for column in columns]


def neighbours(axes: Sequence[Ints], axis: int) -> Iterator[Neighbours]:
    """All pairs of runs that differ in that axis and in no other, in blocks; contexts and changes are numbered.

    The change of a pair from value a to value b has the number min(a, b) * values + max(a, b).
    """
    values = axes[axis]
    n = len(values)
    others = [a for i, a in enumerate(axes) if i != axis]
    _, context = (
        np.unique(np.stack(others), axis=1, return_inverse=True) if others else (None, np.zeros(n, dtype=np.int64))
    )
    context = np.asarray(context).reshape(-1)
    order = np.lexsort((np.arange(n), context))
    ends = np.cumsum(np.bincount(context))[context[order]] if n else np.zeros(0, dtype=np.int64)
    partners = ends - np.arange(n) - 1  # of each run in that order, those behind it in its context
    levels = int(values.max(initial=0)) + 1
    start = 0
    while start < n:
        reach = np.cumsum(partners[start:])
        stop = start + max(1, int(np.searchsorted(reach, _AT_ONCE, side="right")))
        count = partners[start:stop]
        left = np.repeat(np.arange(start, stop), count)
        right = left + 1 + np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
        i, j = order[left], order[right]
        differ = values[i] != values[j]
        i, j = i[differ], j[differ]
        change = np.minimum(values[i], values[j]) * levels + np.maximum(values[i], values[j])
        yield Neighbours(i, j, context[i], change)
        start = stop
