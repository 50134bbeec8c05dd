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

import numpy as np

from .by_setting import contexts_of
from .design import Design
from .jackknife import Jackknife, ends
from .kendall import Floats, Ints, signs


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


def confounding(x: Floats, y: Floats, loss: Floats, design: Design, columns: Mapping[str, Ints]) -> Confounding:
    """Take a relation apart by the factors of the design and the settings of configurations."""
    n = len(y)
    if n < 3:
        return Confounding()
    left_out = Jackknife(design, np.zeros(n, dtype=np.int64))
    agree = (signs(x) * signs(y)).astype(np.float64)
    others = ~np.eye(n, dtype=bool)

    def over(setting: str, weights: Floats, pairs: int) -> Within:
        tau, without = left_out.without(agree * weights, weights)
        return Within(setting, tau, *ends(tau, left_out.spread(without) if pairs else None), pairs)

    within, psi = [], []
    for name, codes in design.factors.items():
        same = (codes[:, None] == codes) & others
        within.append(over(name, same.astype(np.float64), int(same.sum()) // 2))
    axes = list(columns.values())
    for axis, name in enumerate(columns):
        context = contexts_of(axes, axis)
        near = (context[:, None] == context) & (axes[axis][:, None] != axes[axis])
        count = np.bincount(context, near.sum(1))[context]
        weights = np.divide(near, count[:, None], out=np.zeros((n, n)), where=near)
        if near.any() and len(columns) > 1:
            psi.append(over(name, weights, int(near.sum()) // 2))
    return Confounding(tuple(within), tuple(psi), _given(x, y, loss, left_out))


def _given(x: Floats, y: Floats, loss: Floats, left_out: Jackknife) -> Within | None:
    """The partial coefficient given the training loss; lower losses stand for longer training."""
    if not np.isfinite(loss).all() or np.ptp(loss) == 0:
        return None
    sides = [signs(v).astype(np.float64) for v in (x, y, loss)]
    every = 1.0 - np.eye(len(y))
    taus = [left_out.without(sides[i] * sides[j], every) for i, j in ((0, 1), (0, 2), (1, 2))]
    value = float(_partial(*(np.array([t]) for t, _ in taus))[0])
    if not isfinite(value):
        return None
    low, high = ends(value, left_out.spread(_partial(*(w for _, w in taus))))
    return Within("training loss", value, low, high, len(y) * (len(y) - 1) // 2)


def _partial(xy: Floats, xz: Floats, yz: Floats) -> Floats:
    left = (1 - xz**2) * (1 - yz**2)
    found: Floats = np.divide(xy - xz * yz, np.sqrt(left), out=np.full_like(xy, nan), where=left > 1e-9)
    return found
