"""The worst case over environments, after Dziugaite et al. 2020: a good average can hide where a measure always fails.

An environment is one change of one setting (lr from 0.1 to 0.01), over all values of the others. Its sign error is how
often the measure orders two runs that differ by this change against their targets: 0 is always right, 0.5 a coin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kendall import Ints, ranks
from .neighbours import coded, contexts_of, neighbours

# pairs an environment needs to count: of fewer than five coins, all fall wrong in one environment of sixteen
FEWEST = 5
ALIKE = 16  # runs that differ by the seed alone, of which all are compared: 256 pairs for each change of a setting


@dataclass(frozen=True)
class Environment:
    """One change of one setting: from and to, how often the measure was wrong, and over how many pairs."""

    setting: str
    values: tuple[Any, Any]
    sign_error: float
    pairs: int

    def __str__(self) -> str:
        a, b = self.values
        return f"{self.setting} {a!r} to {b!r}: sign error {self.sign_error:.2f} over {self.pairs} pairs"


@dataclass(frozen=True)
class Environments:
    """Sign errors by environment, the worst first; how many had too few pairs, and how many pairs told nothing."""

    found: list[Environment]
    too_few: int
    unresolved: int
    missing: int

    @property
    def worst(self) -> float:
        """The largest sign error: the robust sign error of the paper; nan without environments."""
        return self.found[0].sign_error if self.found else nan

    @property
    def mean(self) -> float:
        """The mean sign error, which hides failures; nan without environments."""
        return float(np.mean([e.sign_error for e in self.found])) if self.found else nan

    def __str__(self) -> str:
        if not self.found:
            return "no environment: no two runs differ in one setting only, or too few do"
        return f"worst of {len(self.found)} environments: {self.found[0]}; the mean is {self.mean:.2f}"


def environments(
    x: ArrayLike,
    y: ArrayLike,
    settings: Mapping[str, Sequence[Any] | NDArray[Any]],
    *,
    resolution: float | ArrayLike = 0.0,
    fewest: int = FEWEST,
) -> Environments:
    """The sign errors of a measure against a target.

    Pairs whose targets differ by no more than `resolution` say nothing about the measure, and are left out and counted,
    as the paper leaves out what noise explains: one number, or a standard error for each run, of which a pair has to
    differ by twice the two together. A tie of the measure is half wrong. Of more than 16 runs that differ by the seed
    alone, 16 are compared, picked blindly.
    """
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    there = np.isfinite(a) & np.isfinite(b)
    noise = np.asarray(resolution, dtype=np.float64)
    noise = noise if noise.ndim == 0 else np.nan_to_num(noise[there])
    a, b = a[there], b[there]
    axes = [codes[there] for codes in coded(settings.values())]
    found, too_few, unresolved = [], 0, 0
    for axis, name in enumerate(settings):
        levels = int(axes[axis].max(initial=0)) + 1
        values, context = axes[axis], contexts_of(axes, axis)
        rows = _some(context * levels + values)
        i, j = (rows[side] for side in neighbours(context[rows], values[rows]))
        bar = noise if noise.ndim == 0 else 2 * np.hypot(noise[i], noise[j])
        clear = np.abs(b[i] - b[j]) > bar
        unresolved += int((~clear).sum())
        i, j = i[clear], j[clear]
        between = np.minimum(values[i], values[j]) * levels + np.maximum(values[i], values[j])
        change, which = np.unique(between, return_inverse=True)
        errors = (1 - np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])) / 2
        count, wrong = np.bincount(which), np.bincount(which, errors)
        too_few += int((count < fewest).sum())
        for number in np.flatnonzero(count >= max(fewest, 1)).tolist():
            at = (int(there.nonzero()[0][np.argmax(axes[axis] == level)]) for level in divmod(change[number], levels))
            one, other = (settings[name][run] for run in at)
            found.append(Environment(name, (one, other), float(wrong[number] / count[number]), int(count[number])))
    found.sort(key=lambda e: (-e.sign_error, -e.pairs))
    return Environments(found, too_few, unresolved, int((~there).sum()))


def _some(alike: Ints) -> Ints:
    """Rows of at most so many runs of each kind, picked blindly: their pairs grow as their square."""
    kind = ranks(alike)
    size = np.bincount(kind)
    if size.max(initial=0) <= ALIKE:
        return np.arange(len(kind))
    order = np.lexsort((np.random.default_rng(0).random(len(kind)), kind))
    number = np.arange(len(kind)) - np.repeat(np.cumsum(size) - size, size)  # within its kind
    return np.sort(order[number < ALIKE])
