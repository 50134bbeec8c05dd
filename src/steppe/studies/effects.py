"""What measures follow instead of generalisation: their correlation with the settings of runs.

Figure 6 of Andriushchenko et al. 2023: sharpness tracks the learning rate, most of all within groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kendall import Floats, Ints, ranks
from .resampling import SHUFFLED
from .table import Column, Table
from .tau import Chance, Tau, kendall


@dataclass(frozen=True)
class Effect:
    """How a measure follows one setting: by tau where the setting has an order, else by the share of rank variance.

    `share` is the part of the variance of the measure's ranks that lies between the setting's values, from 0 to 1 (the
    statistic of Kruskal and Wallis 1952), with the p-value of shuffling; it is there for every setting. By chance
    alone it is about (values - 1) / (n - 1).
    """

    measure: str
    setting: str
    values: int
    n: int
    share: float
    p: float
    pooled: Tau | None = None
    within: Tau | None = None


def effects(
    table: Table,
    measures: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    how: Chance = Chance(),  # noqa: B008, a frozen value
) -> list[Effect]:
    """Every measure against every setting that is not the same in all runs; within the table's groups as well."""
    labels = table.labels()
    columns = {path: table.setting(path) for path in (table.settings() if settings is None else settings)}
    names = table.measures if measures is None else measures
    return [effect(table.measure(m), path, column, labels, how) for m in names for path, column in columns.items()]


def effect(
    x: Column,
    setting: str,
    column: NDArray[Any],
    labels: ArrayLike | None = None,
    how: Chance = Chance(),  # noqa: B008
) -> Effect:
    """One measure against one setting, pooled and within groups."""
    there = np.isfinite(x.values) & np.array([v is not None for v in column], dtype=bool)
    level = ranks([repr(v) for v in column[there]])
    share, p = _between(x.values[there], level, how)
    about = (x.name, setting, len(np.unique(level)), int(there.sum()), share, p)
    numbers = _ordered(column)
    if numbers is None:
        return Effect(*about)
    pooled = kendall(x.values, numbers, x_error=x.errors, how=how)
    several = labels is not None and len(np.unique(np.asarray(labels))) > 1
    within = kendall(x.values, numbers, labels, x_error=x.errors, how=how) if several else None
    return Effect(*about, pooled, within)


def _ordered(column: NDArray[Any]) -> Floats | None:
    """The settings as numbers, nan where a run has none; None where they are words."""
    if not all(v is None or isinstance(v, (bool, int, float)) for v in column):
        return None
    return np.array([nan if v is None else float(v) for v in column])


def _between(values: Floats, level: Ints, how: Chance) -> tuple[float, float]:
    """The share of the variance of ranks that lies between levels, and how often shuffling gives as much."""
    n = len(values)
    if n < 3 or np.ptp(values) == 0 or level.max() == 0:
        return nan, nan
    from scipy.special import chdtrc
    from scipy.stats import rankdata

    centred, size = rankdata(values) - (n + 1) / 2, np.bincount(level)  # tied values share their mean rank
    share = float((np.bincount(level, centred) ** 2 / size).sum() / (centred**2).sum())
    if n > SHUFFLED:  # the chi-squared limit of Kruskal and Wallis
        return share, float(chdtrc(len(size) - 1, (n - 1) * share))
    everything = np.broadcast_to(np.sort(centred), (how.permutations, n))
    shuffled = np.random.default_rng([how.seed, 5]).permuted(everything, axis=1)
    sums = np.add.reduceat(shuffled, np.cumsum(size) - size, axis=1)
    null = (sums**2 / size).sum(1) / (centred**2).sum()
    return share, (1 + int((null >= share - 1e-12).sum())) / (1 + how.permutations)
