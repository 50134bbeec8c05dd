"""p-values of several questions at once, corrected for their number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .._util.names import unknown
from .kendall import Floats


def holm(p: ArrayLike) -> Floats:
    """Holm 1979: the chance of even one false finding stays below the level, however the questions hang together."""
    values = np.asarray(p, dtype=np.float64)
    asked = np.flatnonzero(~np.isnan(values))
    order = asked[np.argsort(values[asked], kind="stable")]
    found = np.full(values.shape, np.nan)
    left = len(order) - np.arange(len(order))
    found[order] = np.minimum(1, np.maximum.accumulate(left * values[order]))
    return found


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Benjamini and Hochberg 1995: the expected share of false findings among the findings stays below the level."""
    values = np.asarray(p, dtype=np.float64)
    asked = np.flatnonzero(~np.isnan(values))
    order = asked[np.argsort(values[asked], kind="stable")]
    found = np.full(values.shape, np.nan)
    scaled = values[order] * len(order) / np.arange(1, len(order) + 1)
    found[order] = np.minimum(1, np.minimum.accumulate(scaled[::-1])[::-1])
    return found


CORRECTIONS: dict[str, Callable[[ArrayLike], Floats]] = {"holm": holm, "benjamini-hochberg": benjamini_hochberg}

# Holm by default: measures are variants of one idea at several radii, and hang together in no known way, which
# Benjamini-Hochberg's promise does not cover; and readers take each starred measure for a finding of its own.
DEFAULT = "holm"


def corrected(p: ArrayLike, by: str = DEFAULT) -> Floats:
    """p-values corrected for how many there are; a missing one (nan) stays missing and is not counted."""
    if by not in CORRECTIONS:
        raise ValueError(unknown("correction", by, CORRECTIONS))
    return CORRECTIONS[by](p)
