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

RECORDED = {"cuda"}  # where passes are recorded: elsewhere launching them costs little


def one_pass(o: Objective, places: Sequence[Tensor], batch: Batch, *, gradient: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch at some places, or one a row, and its mean's gradient, empty if it is not asked for."""

    def work(places: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        losses, grads = _taken(o, places, batch, gradient)
        return [losses, *grads]

    losses, *grads = replayed(o, ("pass", gradient), work, places, batch)
    return losses, grads


def replayed(o: Objective, key: Hashable, work: Work, tensors: Sequence[Tensor], batch: Batch) -> Sequence[Tensor]:
    """`work(tensors, batch)`, which depends on them, the objective and the key alone; on a GPU it is recorded."""
    if not recorded_on(o.space.device):
        return work(tensors, batch)
    rows, form = tree_flatten(batch)
    if not all(isinstance(t, Tensor) for t in rows):
        return work(tensors, batch)
    # whatever else it depends on: a recording of another function, or of memory elsewhere, is not this one
    modules = list(o.model.modules())
    function, memory = function_of(o, modules), _memory(o, modules)
    n = len(tensors)

    def given_all(*given: Tensor) -> list[Tensor]:
        return work(given[:n], tree_unflatten(list(given[n:]), form))

    with undisturbed(o.model, o.statistics):  # here: the states of generators cannot be asked for in a recording
        return o.replays((key, str(form), function, memory), given_all, *tensors, *rows)


def recorded_on(device: torch.device) -> bool:
    """Whether passes on a device are recorded."""
    return device.type in RECORDED


def function_of(o: Objective, modules: Sequence[nn.Module]) -> Hashable:
    """What tells the function that an objective computes from others, whatever its weights, of a model's modules."""
    every = nn.modules.module
    hooks = [tuple(every._global_forward_pre_hooks), tuple(every._global_forward_hooks)]
    made: list[int] = []
    for m in modules:
        made += (id(m), id(type(m)))
        if "forward" in vars(m):
            made.append(id(vars(m)["forward"]))
        if m._forward_pre_hooks or m._forward_hooks or m._backward_pre_hooks or m._backward_hooks:
            # by their numbers, which are given only once, in the order in which they are called
            hooks += [tuple(h) for h in (m._forward_pre_hooks, m._forward_hooks)]
            hooks += [tuple(h) for h in (m._backward_pre_hooks, m._backward_hooks)]
    asked = (id(o.loss_fn), id(o.forward), o.statistics, o.precision)
    return (*asked, *o.params, *made, *hooks)


def _memory(o: Objective, modules: Sequence[nn.Module]) -> Hashable:
    """Where the weights and buffers are, and how they lie there."""
    tensors: list[Tensor | None] = [*o.params.values()]
    for m in modules:
        tensors += (*m._parameters.values(), *m._buffers.values())
    return tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors if t is not None)


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
