"""Pairs of runs that differ in one setting only: what tells the effect of a setting apart from all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kendall import Ints, ranks


def coded(columns: Iterable[Sequence[Any] | NDArray[Any]]) -> list[Ints]:
    """Settings as numbers from 0 in the order of their first run, equal where the values are written alike."""
    found = []
    for column in columns:
        number: dict[str, int] = {}
        found.append(ranks([number.setdefault(repr(v), len(number)) for v in column]))
    return found


def contexts_of(axes: Sequence[Ints], axis: int) -> Ints:
    """Each run's settings but one, as numbers from 0."""
    others = [values for i, values in enumerate(axes) if i != axis]
    if not others:
        return np.zeros(len(axes[axis]), dtype=np.int64)
    return np.unique(np.stack(others), axis=1, return_inverse=True)[1].reshape(-1)


def neighbours(context: Ints, values: Ints) -> tuple[Ints, Ints]:
    """All pairs of runs with the same context, the settings but one, and with different values of that one."""
    differ = (context[:, None] == context) & (values[:, None] != values)
    first, second = np.nonzero(np.triu(differ))
    return first, second
