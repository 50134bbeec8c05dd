"""Estimates of single batches, and their mean: m-sharpness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from .estimate import Estimate, Kind, Measure, weighted
from .objective import Objective

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


@dataclass(frozen=True)
class PerBatch(Measure):
    """m-sharpness: the mean of a measure over single batches, weighted as in the objective (Foret et al. 2021).

    The batches are the draws: the error is that of a sample of batches. Each worker measures its own batches.

    Parameters
    ----------
    measure
        Of one batch.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data, m=1)

    >>> estimate = steppe.measures.PerBatch(steppe.measures.GradientNorm()).estimate(objective)
    >>> estimate.value, estimate.n  # the mean of |(2, 0)| and |(0, 8)|
    (5.0, 2)

    """

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        rows: list[tuple[int, list[float]]] = []
        error: Exception | None = None
        try:
            for number, batch in objective.each():
                part = self.measure.estimate(batch, seed)
                rows.append((number, [part.value, batch.batch_weights[0], float(KINDS.index(part.kind))]))
                if objective.group is None:
                    yield mean_of(rows)
        except Exception as raised:
            error = raised
        objective.workers.raise_on_all(error)
        if objective.group is not None:
            yield mean_of(objective.workers.all_gather(rows))

    def parts(self, objective: Objective, seed: int = 0) -> BatchEstimates:
        """The estimate of every batch that this worker holds, with the batch's number; `plot()` draws them."""
        batches = list(objective.each())
        estimates = [(number, self.measure.estimate(batch, seed)) for number, batch in batches]
        return BatchEstimates(estimates, [batch.batch_weights[0] for _, batch in batches])
