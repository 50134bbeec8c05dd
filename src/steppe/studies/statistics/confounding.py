"""What a relation lives on: tau within the levels of each factor, per setting, and given the training loss.

All of it describes a finding, with intervals and without verdicts: which part of a relation lies between methods, or
between learning rates, and whether anything is left among runs that have that in common.

- within: over pairs of runs with the same level of a factor.
- psi: over pairs that differ in one setting only, each combination of the others weighing the same (Jiang et al. 2020).
- given the training loss: the partial coefficient of Kendall (1942), from the three taus of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .by_setting import contexts_of
from .design import Design
from .jackknife import Jackknife, ends
from .kendall import Floats, Ints, Signs


@dataclass(frozen=True)
class Within:
    """tau over some of the pairs, with its interval; descriptive, without a verdict."""

    setting: str
    tau: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Confounding:
    """What a relation lives on.

    Attributes
    ----------
    within : tuple of Within
        Over pairs with equal levels, by factor.
    psi : tuple of Within
        Over pairs that differ in this setting only.
    given_loss : Within or None
        The partial coefficient given the training loss, where it is known.

    """

    within: tuple[Within, ...] = ()
    psi: tuple[Within, ...] = ()
    given_loss: Within | None = None

    def vanishes(self, tau: float) -> list[str]:
        """The factors within whose levels nothing is left of a relation: not shown, and less than half of it."""
        side = 1 if tau > 0 else -1
        gone = [w for w in self.within if w.pairs and isfinite(w.tau) and side * w.tau < abs(tau) / 2]
        return [w.setting for w in gone if not isfinite(w.low) or min(side * w.low, side * w.high) <= 0]


def confounding(
    x: Signs, y: Signs, loss: Signs | None, left_out: Jackknife, design: Design, columns: Mapping[str, Ints]
) -> Confounding:
    """Take a relation apart by the factors of the design and the settings of configurations.

    `x`, `y` and `loss` are the signs of differences of the measure, the target and the training loss, if it is known.
    """
    n = len(y)
    if n < 3:
        return Confounding()
    agree, others = x * y, ~np.eye(n, dtype=bool)

    def over(setting: str, weights: NDArray[Any], pairs: int) -> Within:
        tau, without = left_out.without(agree * weights, weights)
        return Within(setting, tau, *ends(tau, left_out.spread(without) if pairs else None), pairs)

    within, psi = [], []
    for name, codes in design.factors.items():
        same = (codes[:, None] == codes) & others
        within.append(over(name, same, int(same.sum()) // 2))
    axes = list(columns.values())
    for axis, name in enumerate(columns):
        context = contexts_of(axes, axis)
        near = (context[:, None] == context) & (axes[axis][:, None] != axes[axis])
        count = np.bincount(context, near.sum(1))[context]
        weights = np.divide(near, count[:, None], out=np.zeros((n, n)), where=near)
        if near.any() and len(columns) > 1:
            psi.append(over(name, weights, int(near.sum()) // 2))
    if loss is None:
        return Confounding(tuple(within), tuple(psi))
    # the partial coefficient given the training loss; lower losses stand for longer training
    taus, lines = zip(*(left_out.without(matrix, others) for matrix in (agree, x * loss, y * loss)), strict=True)
    value = float(_partial(*(np.array([tau]) for tau in taus))[0])
    if not isfinite(value):
        return Confounding(tuple(within), tuple(psi))
    low, high = ends(value, left_out.spread(_partial(*lines)))
    given = Within("training loss", value, low, high, n * (n - 1) // 2)
    return Confounding(tuple(within), tuple(psi), given)


def _partial(xy: Floats, xz: Floats, yz: Floats) -> Floats:
    left = (1 - xz**2) * (1 - yz**2)
    found: Floats = np.divide(xy - xz * yz, np.sqrt(left), out=np.full_like(xy, nan), where=left > 1e-9)
    return found
