"""Halving: later trials of a method stop at a rung if they are worse there than the better half of its first trials.

Every method has its own threshold, from its first trials alone, which run to their end. A trial that is behind it ranks
behind all that finished. The jackknife reruns this rule without each trial in turn: so a trial stops only where it is
behind every threshold that one first trial less may give, and the outcome of every other trial is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RUNG = 1 / 3  # of a trial's epochs
KEEP = 1 / 2  # of the first trials


@dataclass(frozen=True)
class Halved:
    """The errors on validation rows of a method's trials at their ends and at the rung, where they have one.

    Parameters
    ----------
    validation
        The error at the end of each trial, or where it stopped; 1 for failures.
    rung
        The error at the rung; 1 for failures.
    first
        The number of first trials, which determine the threshold.

    """

    validation: Array
    rung: Array
    first: int

    def ranked(self, without: int | None = None) -> Array:
        """Return what ranks the trials: errors at the end, and behind them those at the rung of trials behind it."""
        kept = np.arange(min(self.first, len(self.rung))) != without
        behind = self.rung > threshold(self.rung[: len(kept)][kept])
        return np.where(behind, 1 + self.rung, self.validation)

    def cut(self, n: int) -> Halved:
        """Return those of the first n trials."""
        return Halved(self.validation[:n], self.rung[:n], self.first)


def threshold(rung: Array) -> float:
    """Return the largest error at the rung that is kept."""
    return float(np.sort(rung)[ceil(KEEP * len(rung)) - 1])


def limit(rung: Array) -> float:
    """Return the error at the rung above which a trial stops: the largest threshold without one of the first."""
    return max(threshold(np.delete(rung, k)) for k in range(len(rung)))


def rung_of(epochs: int, every: int) -> int:
    """Return the epoch of the rung: the first that is evaluated after a third of a run."""
    return min(epochs, every * ceil(ceil(RUNG * epochs) / every))
