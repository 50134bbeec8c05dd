"""What differentiating a model takes; on a GPU, calls for the same function and shapes are captured and replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .checks import raise_constant
from .session import session

if TYPE_CHECKING:
    from .objective import Objective

Work = Callable[[Sequence[Tensor], Any], list[Tensor]]  # of tensors and a batch

CAPTURED = {"cuda"}  # device types on which passes are captured: on others launching kernels costs little


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DistributedDataParallel and DataParallel."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # compiled models have no second derivative
            model = cast(nn.Module, model._orig_mod)
        else:
            return model


def twice_differentiable(model: nn.Module) -> AbstractContextManager[None]:
    """Give layers second derivatives: attention by the math backend, weight norm by its formula."""
    return second_derivatives(model)()


def second_derivatives(model: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """What makes the same context several times: the model's layers are looked at once."""
    by_math = partial(sdpa_kernel, SDPBackend.MATH)
    if not any("WeightNorm" in type(x).__name__ for m in model.modules() for x in (m, *m._forward_pre_hooks.values())):
        return by_math

    @contextmanager
    def by_formula_too() -> Iterator[None]:
        with by_math(), _WeightNormByFormula():
            yield

    return by_formula_too


class _WeightNormByFormula(TorchFunctionMode):
    """Computes weight norm by its formula: the second derivative of torch's operator is wrong (seen in 2.13)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._weight_norm:
            v, g, dim = (*args, 0)[:3]
            return v * (g / torch.norm_except_dim(v, 2, (kwargs or {}).get("dim", dim)))
        return func(*args, **(kwargs or {}))


def loss_of_batch(o: Objective, weights: Sequence[Tensor], batch: Any, graded: bool) -> Sequence[Tensor]:
    """The loss of a batch (or one per row), and the gradient of its mean if `graded`."""

    def work(weights: Sequence[Tensor], batch: Any) -> list[Tensor]:
        with torch.set_grad_enabled(graded):
            if not graded:
                return [o.evaluate(weights, lambda model: o.loss_fn(*o.forward(model, batch)))]
            leaves = [w.detach().requires_grad_() for w in weights]

            def task(model: nn.Module) -> list[Tensor]:
                losses = o.loss_fn(*o.forward(model, batch))
                if not getattr(losses, "requires_grad", False):
                    raise_constant(o)
                grads = torch.autograd.grad(losses.mean(), leaves, allow_unused=True)
                if all(g is None for g in grads):
                    raise_constant(o)
                return [losses.detach(), *writable(grads, leaves)]

            return o.evaluate(leaves, task)

    return replay(o, ("pass", graded), work, weights, batch)


def writable(grads: Sequence[Tensor | None], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that can be modified in place: autograd may return one tensor twice, or an expanded one."""
    seen: set[int] = set()
    owned = []
    for g, leaf in zip(grads, leaves, strict=True):
        g = torch.zeros_like(leaf) if g is None else g
        overlapping = g.untyped_storage().data_ptr() in seen or (0 in g.stride() and g.numel() > 1)
        owned.append(g.clone(memory_format=torch.contiguous_format) if overlapping else g)
        seen.add(g.untyped_storage().data_ptr())
    return owned


def replay(o: Objective, key: Hashable, work: Work, tensors: Sequence[Tensor], batch: Any) -> Sequence[Tensor]:
    """`work(tensors, batch)`; on a GPU it is captured once and replayed.

    `work` may depend on its arguments, the objective and the key alone.
    """
    if not is_captured(o.device):
        return work(tensors, batch)
    leaves, spec = tree_flatten(batch)
    if not all(isinstance(t, Tensor) for t in leaves):
        return work(tensors, batch)
    # a graph of another function, or of other memory, must not be replayed
    modules = list(o.model.modules())
    owned = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
    memory = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (*o.params.values(), *owned) if t is not None)
    n = len(tensors)

    def flat_work(*inputs: Tensor) -> list[Tensor]:
        return work(inputs[:n], tree_unflatten(list(inputs[n:]), spec))

    with session(o.model, o.statistics):  # not inside: generator states cannot be read during a capture
        return o.replays((key, str(spec), function_key(o, modules), memory), flat_work, *tensors, *leaves)


def is_captured(device: torch.device) -> bool:
    """Whether passes on this device are captured."""
    return device.type in CAPTURED


def function_key(o: Objective, modules: Sequence[nn.Module]) -> Hashable:
    """A key of the function that an objective computes, whatever its weights; `modules` are those of its model."""
    every = nn.modules.module
    hooks = [tuple(every._global_forward_pre_hooks), tuple(every._global_forward_hooks)]
    identities: list[int] = []
    for m in modules:
        identities += (id(m), id(type(m)), id(vars(m).get("forward")))
        # by their ids, which torch never reuses, in the order in which they are called
        hooks += map(tuple, (m._forward_pre_hooks, m._forward_hooks, m._backward_pre_hooks, m._backward_hooks))
    settings = (id(o.loss_fn), id(o.forward), o.statistics, o.precision)
    return (*settings, *o.params, *identities, *hooks)
