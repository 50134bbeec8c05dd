"""Products with the Hessian of an objective, or with its Gauss-Newton part, rescaled if asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...graphs import Recorder
from ...metric import Metric
from ...vector import Space, Vector
from ..batches import Batch, moved
from ..objective import Objective
from ..passes import replayed
from .ahead import AHEAD
from .behind import Behind
from .forms import Form, hessian
from .stacks import Products, columns_of, rows_of_columns
from .trial import TOLERANCE, Bench, Gpu, Trial


@dataclass
class Curvature:
    """The operator v -> D C D v: C is a form of the mean loss at the weights, D the scale of a metric.

    The graph of every batch's gradient is kept where memory allows: a product then costs about 1.5 to 2.4
    gradients instead of 2.6 to 3.7. On a GPU products are recorded; where several directions come often, they are made
    in forward mode, many at once and without graphs, if a trial finds that right and faster.
    """

    objective: Objective
    form: Form = hessian
    metric: Metric | None = None  # Elementwise(0, everywhere=True): H * |w||w|', the adaptive Hessian
    memory: float | None = None  # bytes that kept graphs may take; None: a quarter of what is free
    bench: Bench | None = None  # on which forward mode is tried; None: only on a GPU
    recorder: Recorder | None = None  # of products; None: only on a GPU

    @property
    def space(self) -> Space:
        return self.objective.space

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    @cached_property
    def scale(self) -> Any:
        """D, as a vector or one number a chunk."""
        return None if self.metric is None else self.metric(self.objective)

    def product(self, v: Vector) -> Vector:
        """The operator applied to one vector."""
        return self.products([v])[0]

    def products(self, vectors: Sequence[Vector]) -> list[Vector]:
        """The operator applied to several vectors, batch by batch, so that each batch's graph is built at most once."""
        o = self.objective
        o.check()
        moving = [v if self.scale is None else v * self.scale for v in vectors]
        sums: list[Vector] = []
        for i, (batch, size, weight) in enumerate(zip(o.batches, o.sizes, o.batch_weights, strict=True)):
            if not weight:
                continue
            # copies: autograd may give back a direction itself, or one number in every place
            parts = [self.space.vector(part) * (weight / o.total_weight) for part in self._parts(i, batch, moving)]
            sums = [total.add_(part) for total, part in zip(sums, parts, strict=True)] if sums else parts
            o.meter.products += len(vectors) * size
        sums = [o.workers.summed(total) for total in sums or [self.space.zeros() for _ in vectors]]
        return sums if self.scale is None else [total.mul_(self.scale) for total in sums]

    def gradient(self) -> Vector:
        """The gradient of the mean loss, scaled: where an eigenvalue search does well to start."""
        o = self.objective
        o.check()
        total = self.space.zeros()
        for i, (batch, weight) in enumerate(zip(o.batches, o.batch_weights, strict=True)):
            if weight:
                total.add_(self.space.vector(self._behind.gradient(i, batch)), weight / o.total_weight)
        total = o.workers.summed(total)
        return total if self.scale is None else total.mul_(self.scale)

    def _parts(self, i: int, batch: Batch, vectors: Sequence[Vector]) -> Products:
        o, trial = self.objective, self._trial
        if trial is None or len(vectors) == 1:
            return self._behind.products(i, batch, vectors)

        def behind(some: Sequence[Vector]) -> Products:
            return self._behind.products(i, batch, some)

        def ahead(some: Sequence[Vector]) -> Products:
            there, columns, make = moved(batch, o.space.device), columns_of(some), AHEAD[self.form]
            if not trial.light(len(some)):
                return rows_of_columns(make(o, there, columns))
            found = replayed(o, self.form, lambda columns, rows: make(o, rows, columns), columns, there)
            return rows_of_columns(found)

        parts, more = trial.products(ahead, behind, vectors)
        o.meter.products += more * o.sizes[i]
        return parts

    @cached_property
    def _behind(self) -> Behind:
        return Behind(self.objective, self.form, self.memory, self.recorder)

    @cached_property
    def _trial(self) -> Trial | None:
        """Of forward mode for several vectors; none on a CPU, so that digits there depend on no clock."""
        o = self.objective
        bench = Gpu(o.space.device) if self.bench is None and o.space.device.type == "cuda" else self.bench
        if bench is None or self.form not in AHEAD:
            return None
        double = o.space.precision is torch.float64 and o.precision != "bf16"
        return Trial(bench, TOLERANCE["float64" if double else o.precision])
