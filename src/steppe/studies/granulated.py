"""The granulated coefficient of Jiang et al. 2020: tau setting by setting, all other settings held fixed.

A measure that only follows, say, the depth of networks can have a high tau over a whole pool. Here each setting in turn
is the only one that differs within a comparison, and each counts the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .neighbours import coded, contexts_of, neighbours


@dataclass(frozen=True)
class Granulated:
    """Psi, the mean of psi over settings; for each setting psi and from how many comparisons and pairs it comes."""

    value: float
    psi: Mapping[str, float]
    contexts: Mapping[str, int]
    pairs: Mapping[str, int]
    missing: int

    def __str__(self) -> str:
        each = ", ".join(f"{name} {psi:+.2f} ({self.pairs[name]} pairs)" for name, psi in self.psi.items())
        return f"{self.value:+.2f} ({each or 'no setting varies'})"


def granulated(x: ArrayLike, y: ArrayLike, settings: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Granulated:
    """Psi of a measure against a target: psi of a setting is the mean, over all values of the others, of tau-a.

    Only pairs that differ in the setting count, so runs that differ by the seed alone (leave it out of `settings`) are
    compared across the setting's values and not with one another. A setting without such a pair has psi nan and is
    not in the mean.
    """
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    there = np.isfinite(a) & np.isfinite(b)
    for name, column in settings.items():
        if len(column) != len(a):
            raise ValueError(f"each run has one value of {name}: there are {len(a)} runs and {len(column)} values")
    a, b = a[there], b[there]
    axes = [codes[there] for codes in coded(settings.values())]
    psi, contexts, pairs = {}, {}, {}
    for axis, name in enumerate(settings):
        context = contexts_of(axes, axis)
        i, j = neighbours(context, axes[axis])
        score = np.bincount(context[i], np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]))
        count = np.bincount(context[i])
        used = count > 0
        psi[name] = float((score[used] / count[used]).mean()) if used.any() else nan
        contexts[name], pairs[name] = int(used.sum()), int(count.sum())
    known = [v for v in psi.values() if not np.isnan(v)]
    return Granulated(float(np.mean(known)) if known else nan, psi, contexts, pairs, int((~there).sum()))
