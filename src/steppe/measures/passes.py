"""One pass of an objective over one batch: its loss and, on request, the gradient; on a GPU captured and replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batches import Batch
from .checks import check_depends_on_parameters
from .functional import measurement_mode, writable

if TYPE_CHECKING:
    from .objective import Objective

Work = Callable[[Sequence[Tensor], Batch], list[Tensor]]

RECORDED = {"cuda"}  # device types on which passes are captured: on others launching kernels costs little


def one_pass(o: Objective, weights: Sequence[Tensor], batch: Batch, *, gradient: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch (or one per row) at these weights, and the gradient of its mean, empty unless requested."""

    def work(weights: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        leaves = [w.detach().requires_grad_(gradient) for w in weights]

        def task(model: nn.Module) -> list[Tensor]:
            losses = o.loss_fn(*o.forward(model, batch))
            if not gradient:
                return [losses]
            check_depends_on_parameters(o, losses)
            grads = torch.autograd.grad(losses.mean(), leaves, allow_unused=True)
            check_depends_on_parameters(o, losses, grads)
            return [losses.detach(), *writable(grads, leaves)]

        with torch.set_grad_enabled(gradient):
            return o.evaluate(leaves, task)  # type: ignore[no-any-return]

    losses, *grads = replay(o, ("pass", gradient), work, weights, batch)
    return losses, grads


def replay(o: Objective, key: Hashable, work: Work, tensors: Sequence[Tensor], batch: Batch) -> Sequence[Tensor]:
    """`work(tensors, batch)`; on a GPU it is captured once and replayed.

    `work` may depend on its arguments, the objective and the key alone.
    """
    if not is_recorded(o.space.device):
        return work(tensors, batch)
    leaves, spec = tree_flatten(batch)
    if not all(isinstance(t, Tensor) for t in leaves):
        return work(tensors, batch)
    # a graph of another function, or of other memory, must not be replayed
    modules = list(o.model.modules())
    function, memory = function_key(o, modules), _memory_key(o, modules)
    n = len(tensors)

    def flat_work(*inputs: Tensor) -> list[Tensor]:
        return work(inputs[:n], tree_unflatten(list(inputs[n:]), spec))

    with measurement_mode(o.model, o.statistics):  # out here: generator states cannot be read during a capture
        return o.replays((key, str(spec), function, memory), flat_work, *tensors, *leaves)


def is_recorded(device: torch.device) -> bool:
    """Whether passes on this device are captured."""
    return device.type in RECORDED


def function_key(o: Objective, modules: Sequence[nn.Module]) -> Hashable:
    """A key of the function that an objective computes, whatever its weights; `modules` are those of its model."""
    every = nn.modules.module
    hooks = [tuple(every._global_forward_pre_hooks), tuple(every._global_forward_hooks)]
    identities: list[int] = []
    for m in modules:
        identities += (id(m), id(type(m)))
        if "forward" in vars(m):
            identities.append(id(vars(m)["forward"]))
        if m._forward_pre_hooks or m._forward_hooks or m._backward_pre_hooks or m._backward_hooks:
            # by their ids, which torch never reuses, in the order in which they are called
            hooks += [tuple(h) for h in (m._forward_pre_hooks, m._forward_hooks)]
            hooks += [tuple(h) for h in (m._backward_pre_hooks, m._backward_hooks)]
    settings = (id(o.loss_fn), id(o.forward), o.statistics, o.precision)
    return (*settings, *o.params, *identities, *hooks)


def _memory_key(o: Objective, modules: Sequence[nn.Module]) -> Hashable:
    """Addresses and layouts of the weights and buffers."""
    tensors: list[Tensor | None] = [*o.params.values()]
    for m in modules:
        tensors += (*m._parameters.values(), *m._buffers.values())
    return tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors if t is not None)
