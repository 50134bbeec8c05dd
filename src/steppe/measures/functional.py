"""Calls a model with other weights, in a fixed mode and precision, and leaves the model and the process unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .precision import Precision, computing_in

Statistics = Literal["running", "batch"]  # of normalisation layers: as in eval mode, or of the batch as in training
R = TypeVar("R")

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
    statistics: Statistics = "running",
    precision: Precision = "float32",
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
    plain = _plain_tensors(modules)
    with ExitStack() as stack:
        stack.enter_context(preserved_rng())
        stack.enter_context(computing_in("float32", devices))  # applies to later arithmetic on losses and gradients too
        if "cuda" in devices and recurrent:
            stack.enter_context(_without_cudnn())
        try:
            if not _ACTIVE:  # global to the process, and threads may measure several models at once
                _FAST_PATH.append(torch.backends.mha.get_fastpath_enabled())
            _ACTIVE.add(key)
            torch.backends.mha.set_fastpath_enabled(False)  # it makes losses with and without gradient differ
            for m, training in zip(changed, modes, strict=True):
                _set_mode(m, not training)
            yield
        finally:
            _ACTIVE.discard(key)
            for attributes, name, x in plain:  # e.g. the weight that pruning computes before every pass
                attributes[name] = x
            for rnn, flat, refs in recurrent:  # they cache the weights of their last call
                rnn._flat_weights, rnn._flat_weight_refs = flat, refs
            for m, training in zip(changed, modes, strict=True):
                _set_mode(m, training)
            if not _ACTIVE:
                torch.backends.mha.set_fastpath_enabled(_FAST_PATH.pop())


def _plain_tensors(modules: Sequence[nn.Module]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """(attributes, name, tensor) of tensors that are neither parameters nor buffers."""
    kinds: set[type] = set().union(*(map(type, vars(m).values()) for m in modules))
    if not any(issubclass(kind, Tensor) for kind in kinds):  # the usual case, and faster than testing every attribute
        return []
    return [(vars(m), name, x) for m in modules for name, x in vars(m).items() if isinstance(x, Tensor)]


def _set_mode(module: nn.Module, training: bool) -> None:
    if "training" in vars(module):  # faster than nn.Module.__setattr__
        object.__setattr__(module, "training", training)
    else:  # TorchScript modules store it in another place
        module.training = training


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Disable cuDNN: its recurrent layers have no backward pass in eval mode. Torch's own context would enable TF32."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


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
