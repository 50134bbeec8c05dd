"""Calls a model with other weights, in a fixed mode and precision, and leaves the model and the process unchanged.

On a GPU, calls for the same function and shapes are captured once and replayed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .precision import Precision, computing_in

if TYPE_CHECKING:
    from .objective import Objective

Statistics = Literal["running", "batch"]  # of normalisation layers: as in eval mode, or of the batch as in training
Work = Callable[[Sequence[Tensor], Any], list[Tensor]]  # of tensors and a batch
R = TypeVar("R")

CAPTURED = {"cuda"}  # device types on which passes are captured: on others launching kernels costs little

_ACTIVE: set[tuple[int, str]] = set()  # (model, statistics) of the measurement modes that are entered
_FAST_PATH: list[bool] = []  # whether attention's fast path was enabled before the first of them


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DistributedDataParallel and DataParallel."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # compiled models have no second derivative
            model = cast(nn.Module, model._orig_mod)
        else:
            return model


def call_with_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    task: Callable[[nn.Module], R],
    statistics: Statistics,
    precision: Precision,
) -> R:
    """`task(model)` with these weights in place of the model's own.

    The task may run a backward pass too: activation checkpointing then recomputes with the same weights.
    """
    tensors: dict[str, Tensor] = {f"model.{name}": w for name, w in weights.items()}
    for name, m in model.named_modules():
        if getattr(m, "max_norm", None) is not None:  # such an embedding overwrites its weight
            key = f"{name}.weight" if name else "weight"
            tensors[f"model.{key}"] = weights.get(key, m.weight.detach()).clone()
    # a forward pass may write into buffers
    tensors |= {f"model.{name}": b.clone() for name, b in model.named_buffers()}
    with measurement_mode(model, statistics), computing_in(precision, {w.device.type for w in weights.values()}):
        return functional_call(_TaskModule(model), tensors, (task,))  # type: ignore[no-any-return]


class _TaskModule(nn.Module):
    """A module whose forward pass runs a task on a model: functional_call runs forward passes only."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, task: Callable[[nn.Module], Any]) -> Any:
        return task(self.model)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python at the end of the block."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


@contextmanager
def measurement_mode(model: nn.Module, statistics: Statistics = "running") -> Iterator[None]:
    """Put a model into eval mode (or batch statistics) and compute in float32; restore everything at the end.

    Modes, random states, precision settings and plain tensor attributes return to what they were, also after an error.
    A block inside another one of the same model does nothing, so a long measurement pays for it once.
    """
    if statistics not in get_args(Statistics):
        raise ValueError(f"statistics of normalisation layers are {get_args(Statistics)}, not {statistics!r}")
    key = (id(model), statistics)
    if key in _ACTIVE:
        yield
        return
    modules = list(model.modules())
    devices = {p.device.type for m in modules for p in m._parameters.values() if p is not None}
    changed = [m for m in modules if m.training != (statistics == "batch" and "running_mean" in m._buffers)]
    modes = [m.training for m in changed]
    recurrent = [(m, m._flat_weights, m._flat_weight_refs) for m in modules if isinstance(m, nn.RNNBase)]
    plain = [(vars(m), name, x) for m in modules for name, x in vars(m).items() if isinstance(x, Tensor)]
    with ExitStack() as stack:
        stack.enter_context(preserved_rng())
        stack.enter_context(computing_in("float32", devices))  # applies to later arithmetic on losses and gradients too
        if "cuda" in devices and recurrent:  # cuDNN's recurrent layers have no backward pass in eval mode
            stack.callback(setattr, torch.backends.cudnn, "enabled", torch.backends.cudnn.enabled)
            torch.backends.cudnn.enabled = False  # torch's own context would enable TF32
        try:
            if not _ACTIVE:  # global to the process, and threads may measure several models at once
                _FAST_PATH.append(torch.backends.mha.get_fastpath_enabled())
            _ACTIVE.add(key)
            torch.backends.mha.set_fastpath_enabled(False)  # it makes losses with and without gradient differ
            for m, training in zip(changed, modes, strict=True):
                m.training = not training
            yield
        finally:
            _ACTIVE.discard(key)
            for attributes, name, x in plain:  # e.g. the weight that pruning computes before every pass
                attributes[name] = x
            for rnn, flat, refs in recurrent:  # they cache the weights of their last call
                rnn._flat_weights, rnn._flat_weight_refs = flat, refs
            for m, training in zip(changed, modes, strict=True):
                m.training = training
            if not _ACTIVE:
                torch.backends.mha.set_fastpath_enabled(_FAST_PATH.pop())


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Give layers second derivatives: attention by the math backend, weight norm by its formula."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any("WeightNorm" in type(x).__name__ for m in model.modules() for x in (m, *m._forward_pre_hooks.values())):
            stack.enter_context(_WeightNormByFormula())
        yield


class _WeightNormByFormula(TorchFunctionMode):
    """Computes weight norm by its formula: the second derivative of torch's operator is wrong (seen in 2.13)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._weight_norm:
            v, g, dim = (*args, 0)[:3]
            return v * (g / torch.norm_except_dim(v, 2, (kwargs or {}).get("dim", dim)))
        return func(*args, **(kwargs or {}))


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
    leaves, spec = tree_flatten(batch)
    if not is_captured(o.space.device) or not all(isinstance(t, Tensor) for t in leaves):
        return work(tensors, batch)
    # a graph of another function, or of other memory, must not be replayed
    modules = list(o.model.modules())
    function, memory = function_key(o, modules), _memory_key(o, modules)
    n = len(tensors)

    def flat_work(*inputs: Tensor) -> list[Tensor]:
        return work(inputs[:n], tree_unflatten(list(inputs[n:]), spec))

    with measurement_mode(o.model, o.statistics):  # not inside: generator states cannot be read during a capture
        return o.replays((key, str(spec), function, memory), flat_work, *tensors, *leaves)


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


def _memory_key(o: Objective, modules: Sequence[nn.Module]) -> Hashable:
    """Addresses and layouts of the weights and buffers."""
    owned = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
    tensors: list[Tensor | None] = [*o.params.values(), *owned]
    return tuple((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in tensors if t is not None)
