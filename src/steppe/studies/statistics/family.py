"""Correction of p-values over all tests of a study.

Holm's procedure (1979) bounds the chance that a study shows any false verdict, whatever the dependence of its tests.
Measures are variants of one idea, targets share their runs and methods share their reference, so the dependence is
strong and unknown, and readers take every single verdict for a finding: the family-wise error is what has to be
bounded. Benjamini and Yekutieli's procedure also allows any dependence, but bounds only the share of false verdicts
among all, and with a dozen true ones in a study that admits false ones.

Permutations that all tests share (the step-down minimum of p, Westfall and Young 1993) would use the dependence. They
gain little here: the 38 tests of a study with five measures and two targets count as 18 instead, which lowers the
smallest detectable tau from 0.48 to 0.45, or as 31 where measures share 64 % of their variance (0.47). And they bound
the chance of a false verdict only where a true relation says nothing about the joint distribution of the other tests,
which targets that share their runs violate.

Tests that could not have a small enough p-value however the targets were ordered (small pools, many ties) never reject
and do not count (Tarone 1990): whether a test counts depends on its design and ties, not on the order that was
observed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .kendall import Floats

LEVEL = 0.05  # the chance that a study without any relation shows any verdict


def holm(p: ArrayLike) -> Floats:
    """Holm 1979: corrected p-values; missing ones (nan) stay missing and are not counted."""
    values = np.asarray(p, dtype=np.float64)
    present = np.flatnonzero(~np.isnan(values))
    order = present[np.argsort(values[present], kind="stable")]
    n = len(order)
    corrected = np.full(values.shape, np.nan)
    corrected[order] = np.minimum(1, np.maximum.accumulate((n - np.arange(n)) * values[order]))
    return corrected


def able_to_reject(smallest_p: ArrayLike, level: float = LEVEL) -> NDArray[np.bool_]:
    """Which tests count: those that could reject if as many tests as these count (Tarone 1990)."""
    smallest = np.asarray(smallest_p, dtype=np.float64)
    for k in range(1, len(smallest) + 1):
        able = smallest <= level / k
        if able.sum() <= k:
            return able
    return np.zeros(len(smallest), dtype=bool)
