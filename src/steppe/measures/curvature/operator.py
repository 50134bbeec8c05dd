"""Products with the Hessian of an objective, or with its Gauss-Newton part, rescaled if asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.conv import _ConvNd

from ...metric import Metric
from ...vector import Space, Vector
from ..batches import Batch, moved
from ..objective import Objective
from ..passes import replayed
from .ahead import AHEAD
from .forms import Apply, Form, Local, hessian
from .trial import AT_ONCE, TOLERANCE, Bench, Gpu, Products, Trial

GRAPH = 3  # times the tensors that a forward pass saves: what a gradient's graph keeps (measured: 2 to 3)
SHARE = 0.25  # of the free memory that kept graphs may take unless told otherwise


@dataclass
class Curvature:
    """The operator v -> D C D v: C is a form of the mean loss at the weights, D the scale of a metric.

    The graph of every batch's gradient is kept where memory allows: a product then costs about 1.5 to 2.4
    gradients instead of 2.6 to 3.7. On a GPU products are made in forward mode, without graphs, if a trial finds that
    right and faster.
    """

    objective: Objective
    form: Form = hessian
    metric: Metric | None = None  # Elementwise(0, everywhere=True): H * |w||w|', the adaptive Hessian
    memory: float | None = None  # bytes that kept graphs may take; None: a quarter of what is free
    bench: Bench | None = None  # on which forward mode is tried; None: only on a GPU
    _kept: dict[int, Local] = field(default_factory=dict, repr=False)

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
        for i, (batch, size) in enumerate(zip(o.batches, o.sizes, strict=True)):
            # copies: autograd may give back a direction itself, or one number in every place
            parts = [self.space.vector(part) * (size / o.rows) for part in self._parts(i, batch, moving)]
            sums = [total.add_(part) for total, part in zip(sums, parts, strict=True)] if sums else parts
            o.meter.products += len(vectors) * size
        sums = [o.workers.summed(total) for total in sums or [self.space.zeros() for _ in vectors]]
        return sums if self.scale is None else [total.mul_(self.scale) for total in sums]

    def gradient(self) -> Vector:
        """The gradient of the mean loss, scaled: where an eigenvalue search does well to start."""
        o = self.objective
        o.check()
        if self._trials:  # graphs may turn out not to be needed
            slope = o.gradient()[1]
            return slope if self.scale is None else slope.mul_(self.scale)
        total = self.space.zeros()
        for i, (batch, size) in enumerate(zip(o.batches, o.sizes, strict=True)):
            total.add_(self.space.vector(self._local(i, batch).gradient()), size / o.rows)
        total = o.workers.summed(total)
        return total if self.scale is None else total.mul_(self.scale)

    def _parts(self, i: int, batch: Batch, vectors: Sequence[Vector]) -> Products:
        o = self.objective

        def behind(some: Sequence[Vector]) -> Products:
            return self._apply(self._local(i, batch).apply, some)

        def ahead(some: Sequence[Vector]) -> Products:
            there, columns, make = moved(batch, o.space.device), _columns(some), AHEAD[self.form]
            if not trial.light(len(some)):
                return _rows(make(o, there, columns))
            return _rows(replayed(o, self.form, lambda columns, rows: make(o, rows, columns), columns, there))

        if not self._trials:
            return behind(vectors)
        trial = self._trials[len(vectors) > 1]
        parts, more = trial.products(ahead, behind, vectors)
        o.meter.products += more * o.sizes[i]
        return parts

    @cached_property
    def _trials(self) -> dict[bool, Trial]:
        """For one vector and for several; none on a CPU, so that digits there depend on no clock."""
        o = self.objective
        bench = Gpu(o.space.device) if self.bench is None and o.space.device.type == "cuda" else self.bench
        if bench is None or self.form not in AHEAD:
            return {}
        double = o.space.precision is torch.float64 and o.precision != "bf16"
        tolerance = TOLERANCE["float64" if double else o.precision]
        return {False: Trial(bench, tolerance, at_once=1), True: Trial(bench, tolerance)}

    def _apply(self, apply: Apply, vectors: Sequence[Vector]) -> list[list[Tensor]]:
        if len(vectors) == 1 or not self._vectorises:
            return [apply(v.tensors) for v in vectors]
        try:
            return self._stacked(apply, vectors)
        except (RuntimeError, NotImplementedError):  # not every layer knows several directions at once
            self._vectorises = False
            return self._apply(apply, vectors)

    def _stacked(self, apply: Apply, vectors: Sequence[Vector]) -> list[list[Tensor]]:
        results: list[list[Tensor]] = []
        for start in range(0, len(vectors), AT_ONCE):
            stacked = apply(_columns(vectors[start : start + AT_ONCE]), True)
            results += _rows(stacked)
        return results

    @cached_property
    def _vectorises(self) -> bool:
        """Several directions at once help matrix products and hurt convolutions; recurrent layers cannot."""
        return not any(isinstance(m, (_ConvNd, nn.RNNBase)) for m in self.objective.model.modules())

    def _local(self, i: int, batch: Batch) -> Local:
        if i in self._kept:
            return self._kept[i]
        o = self.objective
        leaves = [w.requires_grad_() for w in o.here()]
        local = self.form(o, leaves, moved(batch, o.space.device))
        o.meter.gradients += o.sizes[i]
        if i < self._keepable:
            self._kept[i] = local
        return local

    @cached_property
    def _keepable(self) -> int:
        """How many batches' graphs fit into the memory."""
        o = self.objective
        if self.memory is None and len(o.batches) == 1:
            return 1
        memory = SHARE * _free_memory(o.space.device) if self.memory is None else self.memory
        return int(memory // (GRAPH * _saved_bytes(o) + 1))


def _rows(columns: Sequence[Tensor]) -> Products:
    return [list(ts) for ts in zip(*columns, strict=True)]


def _columns(vectors: Sequence[Vector]) -> list[Tensor]:
    """One stack of directions a parameter."""
    return [torch.stack(ts) for ts in zip(*(v.tensors for v in vectors), strict=True)]


def _saved_bytes(objective: Objective) -> int:
    """What a forward pass on the first batch saves for its backward pass."""
    seen: dict[int, Any] = {}  # storages, kept alive lest one takes the address of another
    batch = moved(objective.batches[0], objective.space.device)
    leaves = [w.requires_grad_() for w in objective.here()]

    def note(x: Tensor) -> None:
        seen[x.untyped_storage().data_ptr()] = x.untyped_storage()

    def task(model: nn.Module) -> None:
        objective.loss_fn(*objective.forward(model, batch))

    with torch.enable_grad(), saved_tensors_hooks(note, _never):
        objective.evaluate(leaves, task)
    objective.meter.losses += objective.sizes[0]
    return sum(storage.nbytes() for storage in seen.values())


def _never(saved: Any) -> Tensor:
    raise RuntimeError("this graph was only weighed, it has nothing to differentiate")


def _free_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):  # not every system tells
        return 2.0**31
