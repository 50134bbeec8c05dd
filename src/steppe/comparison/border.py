"""Where the selected trials lie in the search space: a selection at its edge tells nothing about a wider one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .statistics import weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..core.laws import Law

MASS = 1 / 3  # of the tuning weights


def at_border(validation: NDArray[Any], quantiles: NDArray[Any], laws: Mapping[str, Law], tuning: int) -> list[str]:
    """Return the settings of which over a third of the tuning weights lies in one outer tenth, such as "lr (high)".

    Parameters
    ----------
    validation
        The error on validation of each trial.
    quantiles
        Per trial, the quantile of each setting, in the order of `laws`.
    laws
        The laws of the settings.
    tuning
        The number of trials among which validation selects.

    """
    w = weights(validation, tuning)
    found = []
    for k, (name, law) in enumerate(laws.items()):
        sides = np.array([law.edge(float(u)) for u in quantiles[:, k]])
        found += [f"{name} ({side})" for side in ("low", "high") if w[sides == side].sum() > MASS]
    return found
