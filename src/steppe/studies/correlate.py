"""Does sharpness predict generalisation in a pool of runs? Every measure against every target.

tau is Eq. 4 of Andriushchenko et al. 2023 (tau-a), with tau-b beside it. Within groups means: over the pairs whose runs
are in the same group, so that a group weighs as its number of pairs does. All the statistics of studies have their
names here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import nan

import numpy as np
from numpy.typing import ArrayLike

from .correction import DEFAULT, benjamini_hochberg, corrected, holm
from .effects import Effect, effects
from .environments import Environments, environments
from .granulated import Granulated, granulated
from .hypotheses import Answer, strong, weak
from .kendall import tau_a, tau_b
from .table import Column, Table
from .tau import Chance, Tau, kendall

__all__ = [
    "Answer", "Chance", "Correlation", "Effect", "Environments", "Granulated", "Tau", "benjamini_hochberg",
    "correlation", "correlations", "effects", "environments", "granulated", "holm", "kendall", "strong", "tau_a",
    "tau_b", "weak",
]  # fmt: skip


@dataclass(frozen=True)
class Correlation:
    """One measure against one target: over all runs, over pairs within groups, and in each group by itself."""

    measure: str
    target: str
    pooled: Tau
    within: Tau | None = None
    by_group: dict[str, Tau] = field(default_factory=dict)


def correlation(x: Column, y: Column, labels: ArrayLike | None = None, how: Chance = Chance()) -> Correlation:  # noqa: B008
    """A measure against a target, pooled and, where there is more than one group, within groups."""
    errors = {"x_error": x.errors, "y_error": y.errors}
    pooled = kendall(x.values, y.values, how=how, **errors)
    groups = np.asarray(labels) if labels is not None else np.zeros(len(x.values), dtype=str)
    names = np.unique(groups)
    if len(names) < 2:
        return Correlation(x.name, y.name, pooled)
    within = kendall(x.values, y.values, groups, how=how, **errors)
    each = {}
    for name in names:
        rows = groups == name
        there = {side: e[rows] for side, e in errors.items()}
        each[str(name)] = kendall(x.values[rows], y.values[rows], how=how, **there)
    return Correlation(x.name, y.name, pooled, within, each)


def correlations(
    table: Table,
    measures: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    correction: str = DEFAULT,
    how: Chance = Chance(),  # noqa: B008
) -> list[Correlation]:
    """Every measure against every target; p-values are corrected for the number of measures, target by target."""
    labels = table.labels()
    found: list[Correlation] = []
    for target in table.targets if targets is None else targets:
        y = table.target(target)
        rows = [
            correlation(table.measure(m), y, labels, how) for m in (table.measures if measures is None else measures)
        ]
        found += _corrected(rows, correction)
    return found


def _corrected(rows: list[Correlation], by: str) -> list[Correlation]:
    pooled = corrected([row.pooled.p for row in rows], by)
    within = corrected([row.within.p if row.within else nan for row in rows], by)
    return [
        replace(
            row,
            pooled=replace(row.pooled, adjusted=float(p)),
            within=replace(row.within, adjusted=float(q)) if row.within else None,
        )
        for row, p, q in zip(rows, pooled, within, strict=True)
    ]
