"""Pairs of runs that differ in one setting only: what tells the effect of a setting apart from all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kendall import Ints, ranks

ALIKE = 16  # runs that differ by the seed alone, of which all are compared: 256 pairs for each change of a setting
TOGETHER = 1000  # runs that differ in one setting only, of which all are compared
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


class _Same:
    """A column that nobody writes to, known again by being the same object."""

    def __init__(self, column: NDArray[Any]):
        self.column = column

    def __hash__(self) -> int:
        return id(self.column)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.column is other.column


def coded(columns: Iterable[Sequence[Any] | NDArray[Any]]) -> list[Ints]:
    """Settings as numbers from 0, equal where the values are written alike; a table's own columns are coded once."""
    found = []
    for column in columns:
        read_only = isinstance(column, np.ndarray) and not column.flags.writeable
        found.append(_coded_once(_Same(np.asarray(column))) if read_only else _codes(column))
    return found


@lru_cache(maxsize=64)
def _coded_once(same: _Same) -> Ints:
    return _codes(same.column)


def _codes(column: Sequence[Any] | NDArray[Any]) -> Ints:
    number: dict[str, int] = {}
    return ranks([number.setdefault(repr(v), len(number)) for v in column])


def contexts_of(axes: Sequence[Ints], axis: int) -> Ints:
    """Each run's settings but one, as numbers from 0."""
    context = np.zeros(len(axes[axis]), dtype=np.int64)
    for other, values in enumerate(axes):
        if other != axis:
            context = ranks(context * (int(values.max(initial=0)) + 1) + values)
    return context


def neighbours(axes: Sequence[Ints], axis: int) -> Iterator[Neighbours]:
    """All pairs of runs that differ in that axis and in no other, in blocks; contexts and changes are numbered.

    The change of a pair from value a to value b has the number min(a, b) * values + max(a, b). Of many runs with the
    very same settings, or with the same settings but this, some are picked blindly: their pairs grow as their square.
    """
    values, context = axes[axis], contexts_of(axes, axis)
    rows = _some(context, values)
    order = rows[np.argsort(context[rows], kind="stable")]
    n = len(order)
    ends = np.cumsum(np.bincount(context[order]))[context[order]] if n else np.zeros(0, dtype=np.int64)
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


def _some(context: Ints, values: Ints) -> Ints:
    draws = np.random.default_rng(0)
    rows = np.arange(len(context))
    for label, most in ((context * (int(values.max(initial=0)) + 1) + values, ALIKE), (context, TOGETHER)):
        there = ranks(label[rows])
        size = np.bincount(there) if len(there) else there
        if size.max(initial=0) > most:
            order = np.lexsort((draws.random(len(rows)), there))
            number = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
            rows = np.sort(rows[order[number < most]])
    return rows
