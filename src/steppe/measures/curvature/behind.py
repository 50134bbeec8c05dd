"""Products in reverse mode, from graphs of gradients that are kept where memory allows and recorded on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.conv import _ConvNd

from ...core.vector import Vector
from ...cuda.graphed_calls import Replays
from ...cuda.graphs import Recorder
from ..batches import Batch, moved
from ..elsewhere import undisturbed
from ..estimate import refuse_not_finite
from ..objective import Objective
from ..passes import recorded_on, replayed
from .forms import Apply, Form, Local

Products = list[list[Tensor]]  # one tensor a parameter for every vector

AT_ONCE = 8  # directions that go back through a graph together: more gained little (curvature benchmarks)
GRAPH = 3  # times the tensors that a forward pass saves: what a gradient's graph keeps (measured: 2 to 3)
SHARE = 0.25  # of the free memory that kept graphs may take unless told otherwise
MOST = 64  # recordings: they share their memory, and each is of one graph, which is kept anyway


class Behind:
    """Multiplies by a form of the loss on one batch at a time, by going back through its gradient's graph."""

    def __init__(self, objective: Objective, form: Form, memory: float | None, recorder: Recorder | None = None):
        self.objective, self.form, self.memory = objective, form, memory
        self.kept: dict[int, Local] = {}
        self._finite: set[int] = set()  # batches whose loss was seen to be
        self._recorder = recorder
        self._replays = Replays(recorder, most=MOST)

    def products(self, i: int, batch: Batch, vectors: Sequence[Vector]) -> Products:
        """The products of the i-th batch with several vectors."""
        o = self.objective
        if i >= self._keepable and self._records:
            return self._anew(i, batch, vectors)
        local = self._local(i, batch)
        if not self._records:
            return self._apply(local.apply, vectors)

        def again(direction: Sequence[Tensor], stacked: bool = False) -> list[Tensor]:
            def apply(*direction: Tensor) -> list[Tensor]:
                return local.apply(direction, stacked)

            return list(self._replays((i, stacked), apply, *direction))

        with undisturbed(o.model, o.statistics):  # here: the states of generators cannot be asked for in a recording
            return self._apply(again, vectors)

    def gradient(self, i: int, batch: Batch) -> list[Tensor]:
        """The gradient of the i-th batch's mean loss, which its graph knows."""
        return self._local(i, batch).gradient()

    def _local(self, i: int, batch: Batch) -> Local:
        if i in self.kept:
            return self.kept[i]
        o = self.objective
        with self._replays.aside(o.space.device):  # a graph is gone through on the stream that it was built on
            local = self._built(moved(batch, o.space.device))
            self._refuse_not_finite(i, local.loss)
        o.meter.gradients += o.sizes[i]
        if i < self._keepable:
            self.kept[i] = local
        return local

    def _built(self, batch: Batch) -> Local:
        return self.form(self.objective, [w.requires_grad_() for w in self.objective.here()], batch)

    def _anew(self, i: int, batch: Batch, vectors: Sequence[Vector]) -> Products:
        """Products with a graph that is built for them alone, all recorded as one for batches of a shape."""
        o, n = self.objective, len(self.objective.space.params)

        def products(directions: Sequence[Tensor], batch: Batch) -> list[Tensor]:
            local = self._built(batch)
            products = [t for k in range(0, len(directions), n) for t in local.apply(directions[k : k + n])]
            return [*products, local.loss]

        results: Products = []
        for start in range(0, len(vectors), AT_ONCE):
            directions = [t for v in vectors[start : start + AT_ONCE] for t in v.tensors]
            found = replayed(o, ("behind", self.form), products, directions, moved(batch, o.space.device))
            *found, loss = found
            self._refuse_not_finite(i, loss)
            results += [list(found[k : k + n]) for k in range(0, len(found), n)]
            o.meter.gradients += o.sizes[i]
        return results

    def _refuse_not_finite(self, i: int, loss: Tensor) -> None:
        """Once a batch: the weights stay, and on a GPU it waits for the loss."""
        if i not in self._finite:
            refuse_not_finite(float(loss), f"of batch {i} at the weights themselves")
            self._finite.add(i)

    def _apply(self, apply: Apply, vectors: Sequence[Vector]) -> Products:
        if len(vectors) == 1 or not self._vectorises:
            return [apply(v.tensors) for v in vectors]
        try:
            return self._stacked(apply, vectors)
        except (RuntimeError, NotImplementedError):  # not every layer knows several directions at once
            self._vectorises = False
            return self._apply(apply, vectors)

    def _stacked(self, apply: Apply, vectors: Sequence[Vector]) -> Products:
        results: Products = []
        for start in range(0, len(vectors), AT_ONCE):
            some = vectors[start : start + AT_ONCE]
            columns = apply([torch.stack(ts) for ts in zip(*(v.tensors for v in some), strict=True)], True)
            results += [list(ts) for ts in zip(*columns, strict=True)]
        return results

    @property
    def _records(self) -> bool:
        return self._recorder is not None or recorded_on(self.objective.space.device)

    @cached_property
    def _vectorises(self) -> bool:
        """Several directions at once help matrix products and hurt convolutions; recurrent layers cannot."""
        return not any(isinstance(m, (_ConvNd, nn.RNNBase)) for m in self.objective.model.modules())

    @cached_property
    def _keepable(self) -> int:
        """How many batches' graphs fit into the memory."""
        o = self.objective
        if self.memory is None and len(o.batches) == 1:
            return 1
        memory = SHARE * _free_memory(o.space.device) if self.memory is None else self.memory
        return int(memory // (GRAPH * _saved_bytes(o) + 1))


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
