"""One pass of an objective on one batch: a loss, and a gradient if asked; on a GPU recorded, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batches import Batch
from .elsewhere import owned, undisturbed
from .steady import refuse_constant

if TYPE_CHECKING:
    from .objective import Objective


Work = Callable[[Sequence[Tensor], Batch], list[Tensor]]


def one_pass(o: Objective, places: Sequence[Tensor], batch: Batch, *, gradient: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch at some places, or one a row, and its mean's gradient, empty if it is not asked for."""

    def work(places: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        losses, grads = _taken(o, places, batch, gradient)
        return [losses, *grads]

    losses, *grads = replayed(o, ("pass", gradient), work, places, batch)
    return losses, grads


def replayed(o: Objective, key: Hashable, work: Work, tensors: Sequence[Tensor], batch: Batch) -> Sequence[Tensor]:
    """`work(tensors, batch)`, which depends on them, the objective and the key alone; on a GPU it is recorded."""
    if tensors[0].device.type != "cuda":
        return work(tensors, batch)
    rows, form = tree_flatten(batch)
    if not all(isinstance(t, Tensor) for t in rows):
        return work(tensors, batch)
    # whatever else it depends on: a recording of another function, or of memory elsewhere, is not this one
    function = (id(o.model), id(o.loss_fn), id(o.forward), o.statistics, o.precision, tuple(o.params), str(form))
    memory = tuple(t.data_ptr() for t in (*o.model.parameters(), *o.model.buffers()))
    n = len(tensors)

    def function_of(*given: Tensor) -> list[Tensor]:
        return work(given[:n], tree_unflatten(list(given[n:]), form))

    with undisturbed(o.model, o.statistics):  # here: the states of generators cannot be asked for in a recording
        return o.replays((key, function, memory), function_of, *tensors, *rows)


def _taken(o: Objective, places: Sequence[Tensor], batch: Batch, gradient: bool) -> tuple[Tensor, list[Tensor]]:
    leaves = [p.detach().requires_grad_(gradient) for p in places]

    def task(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
        losses = o.loss_fn(*o.forward(model, batch))
        if not gradient:
            return losses, []
        refuse_constant(o, losses)
        grads = torch.autograd.grad(losses.mean(), leaves, allow_unused=True)
        refuse_constant(o, losses, grads)
        return losses.detach(), owned(grads, leaves)

    with torch.set_grad_enabled(gradient):
        return o.evaluate(leaves, task)  # type: ignore[no-any-return]
