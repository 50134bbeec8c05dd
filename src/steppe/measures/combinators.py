"""Measures made of measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from .estimate import Cost, Estimate, Kind, Measure, weighted
from .objective import Objective

KINDS: tuple[Kind, ...] = get_args(Kind)  # from the strongest to the weakest


@dataclass(frozen=True)
class PerBatch(Measure):
    """m-sharpness: the mean of a measure over single batches, weighted as the objective does, which are the draws.

    Its error is that of the batches as a sample of all such batches. With several workers each measures its own.
    """

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        before = objective.spent()
        rows: list[tuple[int, list[float]]] = []
        trouble: Exception | None = None
        try:
            for number, batch in objective.each():
                part = self.measure.estimate(batch, seed)
                rows.append((number, [part.value, batch.batch_weights[0], float(KINDS.index(part.kind))]))
                if objective.group is None:
                    yield _mean_of(rows, objective.spent() - before)
        except Exception as found:
            trouble = found
        objective.workers.share_trouble(trouble)
        if objective.group is not None:
            yield _mean_of(objective.workers.gathered(rows), objective.spent() - before)

    def parts(self, objective: Objective, seed: int = 0) -> list[tuple[int, Estimate]]:
        """The estimate of every batch that this worker holds, with the batch's number."""
        return [(number, self.measure.estimate(batch, seed)) for number, batch in objective.each()]


def _mean_of(rows: Sequence[tuple[int, list[float]]], cost: Cost) -> Estimate:
    draws = torch.tensor([row for _, row in rows], dtype=torch.float64)
    kind = KINDS[int(draws[:, 2].max())]  # a mean is as weak as the weakest of its parts
    return weighted(draws[:, 0], draws[:, 1], kind, cost=cost)


@dataclass(frozen=True)
class NormalisedLogits:
    """A loss of logits divided by their standard deviation over the classes, row by row (A modern look, eq. 5)."""

    loss_fn: Callable[[Any, Any], Tensor]

    def __call__(self, logits: Tensor, target: Any) -> Tensor:
        return self.loss_fn(logits / logits.std(-1, correction=0, keepdim=True), target)


@dataclass(frozen=True)
class OnNormalisedLogits(Measure):
    """A measure of the loss of normalised logits, which the scale of the last layer does not change."""

    measure: Measure

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        return self.measure.running(replace(objective, loss_fn=NormalisedLogits(objective.loss_fn)), seed)
