"""Measures of other measures: their mean over single batches, on other rows, or of normalised logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..core.fields import Count
from .batches import own_loss
from .estimate import Estimate, Kind, Measure, weighted
from .objective import Objective
from .session import Precision

Rows = Literal["train", "validation", "test", "corrupted", "augmented"]
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
            raise ValueError("this worker holds no batches, so there is no mean")
        return mean_of([row_of(i, e, w) for (i, e), w in zip(self, self.weights, strict=True)])

    def plot(self) -> Any:
        """A plotly figure of the value of each batch, and their mean with its 95 % interval."""
        from .charts import over_batches

        return over_batches(self, self.mean())


def row_of(number: int, e: Estimate, weight: float) -> tuple[int, list[float]]:
    """A batch by number as value, weight and index of the kind."""
    return number, [e.value, weight, float(KINDS.index(e.kind))]


def mean_of(rows: Sequence[tuple[int, list[float]]]) -> Estimate:
    """The weighted mean of batches."""
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
        each = (
            row_of(number, self.measure.estimate(batch, seed), batch.batch_weights[0])
            for number, batch in objective.each()
        )
        if objective.group is not None:
            yield mean_of(objective.workers.all_gather(objective.workers.together(lambda: list(each))))
            return
        rows: list[tuple[int, list[float]]] = []
        for row in each:
            rows.append(row)
            yield mean_of(rows)

    def parts(self, objective: Objective, seed: int = 0) -> BatchEstimates:
        """The estimate of every batch that this worker holds, with the batch's number; `plot()` draws them."""
        batches = list(objective.each())
        estimates = [(number, self.measure.estimate(batch, seed)) for number, batch in batches]
        return BatchEstimates(estimates, [batch.batch_weights[0] for _, batch in batches])


@dataclass(frozen=True)
class NormalisedLogits:
    """A loss of logits that are divided by their standard deviation over the classes (A modern look, 2023, eq. 5).

    Parameters
    ----------
    loss_fn
        The loss of the divided logits and the target.

    Examples
    --------
    >>> loss_fn = steppe.measures.NormalisedLogits(nn.functional.cross_entropy)
    >>> logits, target = torch.tensor([[1.0, 3.0]]), torch.tensor([1])
    >>> bool(loss_fn(logits, target) == loss_fn(8 * logits, target))
    True

    """

    loss_fn: Callable[[Any, Any], Tensor]

    def __call__(self, logits: Tensor, target: Any) -> Tensor:
        if self.loss_fn is own_loss:
            raise TypeError("normalised logits need a loss of logits: pass loss_fn, such as cross-entropy, not None")
        return self.loss_fn(logits / logits.std(-1, correction=0, keepdim=True), target)


@dataclass(frozen=True)
class OnNormalisedLogits(Measure):
    """A measure of the loss of normalised logits, which does not depend on the scale of the last layer.

    Parameters
    ----------
    measure
        Of the objective with `NormalisedLogits`.

    Examples
    --------
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> objective = steppe.Objective(model, nn.functional.cross_entropy, (torch.eye(2), torch.arange(2)))

    >>> loss = steppe.measures.OnNormalisedLogits(steppe.measures.Loss())
    >>> round(float(loss.estimate(objective)), 4)  # log(1 + exp(-2)), because (1, 0) becomes (2, 0)
    0.1269

    """

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        return self.measure.running(replace(objective, loss_fn=NormalisedLogits(objective.loss_fn)), seed)


@dataclass(frozen=True)
class OnData(Measure):
    """A measure on other samples, in other batches or in another precision than the objective that it is measured with.

    Alone it changes batches and precision. `rows` and `count` need the data of a run: `measure_objective` takes them
    from its argument `on`.

    Parameters
    ----------
    measure
        The measure.
    rows
        "train", "validation" and "test" rows; "corrupted": test rows under the run's corruptions; "augmented": training
        rows under the run's augmentations, drawn once. None: those of the objective.
    count
        The number of rows.
    m
        Rows per batch.
    precision
        Of the passes.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> m_sharpness = steppe.measures.PerBatch(steppe.measures.OneStep(steppe.Ball(0.5)))
    >>> estimate = steppe.measures.OnData(m_sharpness, m=1).estimate(objective)  # batches of one row
    >>> round(estimate.value, 4), estimate.n  # the mean of 1.5 ** 2 - 1 and 3 ** 2 - 4
    (3.125, 2)

    """

    measure: Measure
    rows: Rows | None = None
    count: Count | None = None
    m: Count | None = None
    precision: Precision | None = None

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        return self.measure.running(self.applied(objective), seed)

    def applied(self, objective: Objective) -> Objective:
        """The objective in batches of m rows and in this precision; raise ValueError for other rows."""
        if self.rows is not None or self.count is not None:
            raise ValueError(
                "rows= and count= choose among the rows of a run, as in `steppe measure`, `train` and studies: pass "
                "the rows to measure on as data"
            )
        if self.m is not None and objective.group is not None:
            raise ValueError("m= regroups the batches of one process: pass share(data, group, m) as data")
        return replace(objective, m=self.m or objective.m, precision=self.precision or objective.precision)
