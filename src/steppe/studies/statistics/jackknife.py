"""The jackknife of means over pairs of runs: it leaves out configurations, and the levels of every factor."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..table import Table
from .design import Design, determines
from .kendall import Floats, Ints, alike, ranks, scores
from .permutation import units_in
from .spread import NORMAL, Part, Spread

FEWEST = 5  # configurations of an interval: jackknifes of fewer have too few values
FEWEST_LEVELS = 3  # of a factor: two values give no variance
ROW_GROUPS = 20  # groups of test rows that are left out


class Jackknife:
    """What is left out: each configuration, and each level of a factor that the groups do not fix."""

    def __init__(self, design: Design, group: Ints) -> None:
        codes = {"": units_in(design.configuration, group)}
        for name, code in design.samples.items():
            if len(np.unique(code)) >= FEWEST_LEVELS and not determines(group, code):
                codes[name] = code
        self.crossed = "seed" in codes
        if self.crossed:
            codes["run"] = np.arange(len(group))
        self.names = [name for name, code in codes.items() for _ in range(int(code.max(initial=-1)) + 1)]
        lines = [code == level for code in codes.values() for level in range(int(code.max(initial=-1)) + 1)]
        self.member: NDArray[np.bool_] = np.array(lines, dtype=bool).reshape(len(lines), len(group))
        self.strata = len(np.unique(group))

    def without(self, agree: NDArray[Any], weights: NDArray[Any]) -> tuple[float, Floats]:
        """The weighted mean of signs over all pairs, and without each of the lines; from symmetric matrices."""
        (score, scores), (pairs, of_pairs) = (self._sums(m) for m in (agree, weights))
        known = of_pairs > 1e-9
        left = np.divide(scores, of_pairs, out=np.full(len(scores), np.nan), where=known)
        return (score / pairs if pairs else np.nan), left

    def _sums(self, matrix: NDArray[Any]) -> tuple[float, Floats]:
        """The sum of a symmetric matrix, and its sums without the rows and columns of each line."""
        of_rows = matrix.sum(1, dtype=np.float64)
        single = self.member.sum(1) == 1  # the rest are few and short in a large study
        inside = np.empty(len(self.member))
        inside[single] = matrix.diagonal()[self.member[single].argmax(1)]
        blocks = (matrix[np.ix_(line, line)] for line in self.member[~single])
        inside[~single] = [block.sum(dtype=np.float64) for block in blocks]
        total = float(of_rows.sum())
        return total, total - 2 * (self.member @ of_rows) + inside

    def spread(self, without: Floats, rows: float = 0.0) -> Spread | None:
        """The error of a statistic from its values without each line; None if there are too few.

        It is at least 1 / 2k for k configurations: as if one configuration had an eighth of its pairs the other way
        round. A perfect order would otherwise have no error at all.
        """
        names, parts = np.array(self.names), {}
        for name in dict.fromkeys(self.names):
            values = without[names == name]
            k = len(values)
            if np.isfinite(values).all():
                variance = (k - 1) / k * float(((values - values.mean()) ** 2).sum())
                parts[name] = Part(name, k, k - (self.strata if name == "" else 1), variance)
        units = parts.pop("", None)
        if units is None or units.levels < max(FEWEST, self.strata + 1):
            return None
        units = Part("", units.levels, units.freedom, max(units.variance, 1 / (2 * units.levels) ** 2))
        single, seeds = parts.pop("run", None), parts.pop("seed", None)
        more = [Part("test rows", 0, NORMAL, rows)] if rows else []
        if seeds is not None and single is not None:
            extra = max(seeds.variance - single.variance, 0.0)
            more += [Part("seed", seeds.levels, seeds.freedom, extra)] if extra else []
        return Spread.of(list(parts.values()), units, more)


def rows_of(table: Table, target: str) -> NDArray[np.bool_] | None:
    """Which test rows each run gets wrong, where the target is their share or its difference from training rows."""
    rows = [run.rows for run in table.runs]
    if not rows or any(r is None for r in rows) or len({len(r) for r in rows if r is not None}) > 1:
        return None
    wrong = ~np.stack([r for r in rows if r is not None])
    values = table.target(target).values
    known = np.isfinite(values)
    if target == "gap" or np.allclose(values[known], wrong.mean(1)[known], atol=1e-6):
        return wrong
    return None


def row_variances(x: Floats, y: Floats, group: Ints, wrong: NDArray[np.bool_] | None) -> Floats:
    """The variance of tau within groups, one per line of x, that the test rows add to what differs between runs.

    Groups of rows are left out, the same for all runs. What single runs would vary by anyhow, with other rows left out
    in each, is in the variance of configurations already.
    """
    n, pairs = len(y), alike(group, group)
    if wrong is None or wrong.shape[1] < 2 * ROW_GROUPS or not pairs:
        return np.zeros(len(x))
    rows, groups = wrong.shape[1], ROW_GROUPS
    draws = np.random.Generator(np.random.Philox(0))
    part = draws.permutation(np.arange(rows) % groups)
    of_group = np.stack([wrong[:, part == g].sum(1) for g in range(groups)], axis=1).astype(np.float64)
    size = np.bincount(part)

    def variance(groups_of: Ints) -> Floats:
        left = [
            y - wrong.mean(1) + (wrong.sum(1) - of_group[np.arange(n), gone]) / (rows - size[gone])
            for gone in groups_of.T
        ]
        ranked = np.stack([ranks(values) for values in left])
        spread = scores(x, ranked, group).T / pairs
        found: Floats = (groups - 1) / groups * ((spread - spread.mean(0)) ** 2).sum(0)
        return found

    together = np.broadcast_to(np.arange(groups), (n, groups))
    apart = np.argsort(draws.random((n, groups)), axis=1)
    found: Floats = np.maximum(variance(together) - variance(apart), 0.0)
    return found


def ends(value: float, spread: Spread | None, level: float = 0.05) -> tuple[float, float]:
    """The interval of a coefficient between -1 and 1; nan without a spread."""
    half = spread.half(level) if spread is not None and isfinite(value) else np.nan
    return max(value - half, -1.0), min(value + half, 1.0)
