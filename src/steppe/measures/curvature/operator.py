"""Products with the Hessian of an objective, its Gauss-Newton part or its Fisher matrix, optionally rescaled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.conv import _ConvNd

from ...core.basis import flat, unflat
from ...core.metric import Metric
from ...core.vector import Space, Vector
from ...cuda.graphs import GraphCache, Recorder
from ..batches import Batch, to_device
from ..estimate import check_finite
from ..functional import is_captured, replay
from ..objective import Objective
from ..session import session
from .forms import Apply, BatchForm, Form, hessian

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Products = list[list[Tensor]]  # one tensor per parameter for every vector

AT_ONCE = 8  # directions per backward pass through a graph: more gained little (curvature benchmarks)
GRAPH = 3  # memory of a gradient's graph, in tensors that a forward pass saves (measured: 2 to 3)
SHARE = 0.25  # of the free memory that kept graphs may take by default
MOST = 64  # captured graphs: they share their memory, and each belongs to one kept autograd graph


@dataclass
class Curvature:
    """The operator v -> D C D v: C is a form of the mean loss at the weights, D the scale of a metric.

    Parameters
    ----------
    objective
        The loss and the data.
    form
        `hessian`, `gauss_newton` or `empirical_fisher`.
    metric
        The scale D; `Elementwise(0, everywhere=True)` gives the adaptive Hessian H * |w||w|'.
    memory
        Bytes that kept graphs may take; None takes a quarter of the free memory. With the graph of a batch's gradient
        kept, a product costs about 1.5 to 2.4 gradients instead of 2.6 to 3.7.
    recorder
        Captures products for replay; None captures them on a GPU only.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> hessian = steppe.measures.Curvature(objective)
    >>> v = objective.space.vector([torch.tensor([[1.0, 2.0]])])
    >>> hessian.product(v).tensors  # the Hessian is the identity
    [tensor([[1., 2.]])]
    >>> hessian @ torch.tensor([1.0, 2.0])  # in the order of the parameters
    tensor([1., 2.])

    """

    objective: Objective
    form: Form = hessian
    metric: Metric | None = None
    memory: float | None = None
    recorder: Recorder | None = None

    @property
    def space(self) -> Space:
        return self.objective.space

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    @cached_property
    def scale(self) -> Any:
        """D, as a vector or as one number per chunk."""
        return None if self.metric is None else self.metric(self.objective)

    def product(self, v: Vector) -> Vector:
        """The operator applied to one vector."""
        return self.products([v])[0]

    def products(self, vectors: Sequence[Vector]) -> list[Vector]:
        """The operator applied to several vectors, batch by batch, so that each batch's graph is built at most once."""
        o = self.objective
        o.check()
        scaled = [v if self.scale is None else v * self.scale for v in vectors]
        sums: list[Vector] = []
        for i, (batch, size, share) in enumerate(zip(o.batches, o.sizes, o.shares, strict=True)):
            if not share:
                continue
            # copies: autograd may return a direction itself, or an expanded tensor
            parts = [self.space.vector(part) * share for part in self._batch_products.products(i, batch, scaled)]
            sums = [total.add_(part) for total, part in zip(sums, parts, strict=True)] if sums else parts
            o.meter["products"] += len(vectors) * size
        sums = [o.workers.all_reduce_vector(total) for total in sums or [self.space.zeros() for _ in vectors]]
        return sums if self.scale is None else [total.mul_(self.scale) for total in sums]

    @property
    def shape(self) -> tuple[int, int]:
        return self.dimension, self.dimension

    def __matmul__(self, other: Any) -> Any:
        """The operator times a `Vector`, or a tensor or array with a row per weight in the order of the parameters."""
        if isinstance(other, Vector):
            return self.product(other)
        given = torch.as_tensor(other)
        if given.ndim not in (1, 2) or len(given) != self.dimension:
            raise ValueError(f"an operator on {self.dimension} weights takes as many rows, not {tuple(given.shape)}")
        columns = given.reshape(self.dimension, -1).unbind(1)
        images = [flat(image) for image in self.products([unflat(self.space, column) for column in columns])]
        result = torch.stack(images, 1).reshape(given.shape) if images else given.clone()
        return result.to(given) if isinstance(other, Tensor) else result.to(given).numpy()

    def linear_operator(self) -> LinearOperator:
        """The same for scipy.sparse.linalg, such as `eigsh` and `cg`; it takes and returns arrays."""
        from scipy.sparse.linalg import LinearOperator

        dtype = torch.zeros(0, dtype=self.space.precision).numpy().dtype
        times = self.__matmul__
        return LinearOperator(self.shape, matvec=times, rmatvec=times, matmat=times, rmatmat=times, dtype=dtype)

    def per_layer(self) -> dict[str, Curvature]:
        """The diagonal blocks: the same operator of every layer's own parameters, by the layer's name."""
        o = self.objective
        o.check()
        layers: dict[str, list[str]] = {}
        for name in o.params:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        parts = {layer: replace(o, only=names, m=None, trusted=True) for layer, names in layers.items()}
        for part in parts.values():
            vars(part).update(batch_weights=o.batch_weights, shares=o.shares, reductions=o.reductions)
        return {layer: replace(self, objective=part) for layer, part in parts.items()}

    def gradient(self) -> Vector:
        """The gradient of the mean loss, scaled: a good start for an eigenvalue search."""
        o = self.objective
        o.check()
        total = self.space.zeros()
        for i, (batch, share) in enumerate(zip(o.batches, o.shares, strict=True)):
            if share:
                total.add_(self.space.vector(self._batch_products.gradient(i, batch)), share)
        total = o.workers.all_reduce_vector(total)
        return total if self.scale is None else total.mul_(self.scale)

    @cached_property
    def _batch_products(self) -> BatchProducts:
        return BatchProducts(self.objective, self.form, self.memory, self.recorder)


class BatchProducts:
    """Products with a form of the loss on one batch, by reverse mode through the graph of its gradient."""

    def __init__(self, objective: Objective, form: Form, memory: float | None, recorder: Recorder | None = None):
        self.objective, self.form, self.memory = objective, form, memory
        self.kept: dict[int, BatchForm] = {}
        self._finite: set[int] = set()  # batches whose loss was checked
        self._recorder = recorder
        self._graphs = GraphCache(recorder, limit=MOST)

    def products(self, i: int, batch: Batch, vectors: Sequence[Vector]) -> Products:
        """The products of the i-th batch with several vectors."""
        o = self.objective
        if i >= self._keepable and self._records:
            return self._with_temporary_graph(i, batch, vectors)
        batch_form = self._batch_form(i, batch)
        if not self._records:
            return self._apply(batch_form.apply, vectors)

        def replayed(direction: Sequence[Tensor], stacked: bool = False) -> list[Tensor]:
            def apply(*direction: Tensor) -> list[Tensor]:
                return batch_form.apply(direction, stacked)

            return list(self._graphs((i, stacked), apply, *direction))

        with session(o.model, o.statistics):  # not inside: generator states cannot be read during a capture
            return self._apply(replayed, vectors)

    def gradient(self, i: int, batch: Batch) -> list[Tensor]:
        """The gradient of the i-th batch's mean loss, from its graph."""
        return self._batch_form(i, batch).gradient()

    def _batch_form(self, i: int, batch: Batch) -> BatchForm:
        if i in self.kept:
            return self.kept[i]
        o = self.objective
        with self._graphs.on_stream(o.device):  # a backward pass runs on the stream of its forward pass
            batch_form = self._build(to_device(batch, o.device))
            self._check_finite(i, batch_form.loss)
        o.meter["gradients"] += o.sizes[i]
        if i < self._keepable:
            self.kept[i] = batch_form
        return batch_form

    def _build(self, batch: Batch) -> BatchForm:
        return self.form(self.objective, [w.requires_grad_() for w in self.objective.weight_tensors()], batch)

    def _with_temporary_graph(self, i: int, batch: Batch, vectors: Sequence[Vector]) -> Products:
        """Build a graph and multiply with it, captured as one; batches of the same shape share the capture."""
        o, n = self.objective, len(self.objective.space.params)

        def products(directions: Sequence[Tensor], batch: Batch) -> list[Tensor]:
            batch_form = self._build(batch)
            products = [t for k in range(0, len(directions), n) for t in batch_form.apply(directions[k : k + n])]
            return [*products, batch_form.loss]

        results: Products = []
        for start in range(0, len(vectors), AT_ONCE):
            directions = [t for v in vectors[start : start + AT_ONCE] for t in v.tensors]
            device = o.device
            *tensors, loss = replay(o, ("products", self.form), products, directions, to_device(batch, device))
            self._check_finite(i, loss)
            results += [list(tensors[k : k + n]) for k in range(0, len(tensors), n)]
            o.meter["gradients"] += o.sizes[i]
        return results

    def _check_finite(self, i: int, loss: Tensor) -> None:
        """Once per batch: the weights stay the same, and on a GPU this waits for the loss."""
        if i not in self._finite:
            check_finite(float(loss), f"of batch {i} at the weights themselves")
            self._finite.add(i)

    def _apply(self, apply: Apply, vectors: Sequence[Vector]) -> Products:
        if len(vectors) > 1 and self._vectorises:
            blocks = (vectors[k : k + AT_ONCE] for k in range(0, len(vectors), AT_ONCE))
            stacks = (map(torch.stack, zip(*(v.tensors for v in block), strict=True)) for block in blocks)
            try:
                return [list(ts) for stack in stacks for ts in zip(*apply(list(stack), True), strict=True)]
            except (RuntimeError, NotImplementedError):  # not every layer supports batched gradients
                self._vectorises = False
        return [apply(v.tensors) for v in vectors]

    @property
    def _records(self) -> bool:
        return self._recorder is not None or is_captured(self.objective.device)

    @cached_property
    def _vectorises(self) -> bool:
        """Batched gradients speed up matrix products and slow down convolutions; recurrent layers have none."""
        return not any(isinstance(m, (_ConvNd, nn.RNNBase)) for m in self.objective.model.modules())

    @cached_property
    def _keepable(self) -> int:
        """How many batches' graphs fit into the memory."""
        o, memory = self.objective, self.memory
        if memory is None and len(o.batches) == 1:
            return 1
        memory = SHARE * _free_memory(o.device) if memory is None else memory
        # the bytes that a forward pass on the first batch saves for its backward pass
        storages: dict[int, Any] = {}  # by address, kept alive so that no address is reused
        batch = to_device(o.batches[0], o.device)
        leaves = [w.requires_grad_() for w in o.weight_tensors()]

        def record(x: Tensor) -> None:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage()

        with torch.enable_grad(), saved_tensors_hooks(record, lambda saved: saved):  # there is no backward pass
            o.evaluate(leaves, lambda model: o.loss_fn(*o.forward(model, batch)))
        o.meter["losses"] += o.sizes[0]
        return int(memory // (GRAPH * sum(storage.nbytes() for storage in storages.values()) + 1))


def _free_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):  # not available on every system
        return 2.0**31
