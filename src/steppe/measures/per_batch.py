"""Estimates of single batches, and their mean: m-sharpness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import torch

from .estimate import Estimate, Kind, weighted

KINDS: tuple[Kind, ...] = get_args(Kind)  # from the strongest to the weakest


class BatchEstimates(list[tuple[int, Estimate]]):
    """Pairs of a batch's number and its estimate.

    Attributes
    ----------
    weights
        The weight of each batch in the mean.

    """

    def __init__(self, pairs: Iterable[tuple[int, Estimate]] = (), weights: Iterable[float] = ()) -> None:
        super().__init__(pairs)
        self.weights = list(weights)

    def mean(self) -> Estimate:
        """m-sharpness: the weighted mean over these batches, as `PerBatch.estimate` computes it."""
        if not self:
            raise ValueError("no batches: this worker holds none, and their mean is that of nothing")
        kinds = [float(KINDS.index(e.kind)) for _, e in self]
        rows = [(i, [e.value, w, k]) for (i, e), w, k in zip(self, self.weights, kinds, strict=True)]
        return mean_of(rows)

    def plot(self) -> Any:
        """A plotly figure of the value of each batch, and their mean with its 95 % interval."""
        from .charts import over_batches

        return over_batches(self, self.mean())


def mean_of(rows: Sequence[tuple[int, list[float]]]) -> Estimate:
    """The weighted mean of batches, given by number as value, weight and index of the kind."""
    draws = torch.tensor([row for _, row in rows], dtype=torch.float64)
    kind = KINDS[int(draws[:, 2].max())]  # the weakest kind of its parts
    return weighted(draws[:, 0], draws[:, 1], kind)
