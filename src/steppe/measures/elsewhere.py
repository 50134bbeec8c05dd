"""Runs a model's function at other weights and leaves no trace in the model."""

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

Statistics = Literal["running", "batch"]  # what normalisation layers use: eval mode, or the batch as in training
R = TypeVar("R")

_UNDISTURBED: set[tuple[int, str]] = set()  # models, with the statistics asked for, that a block looks after already
_FAST_PATH: list[bool] = []  # whether attention layers took their fast path before the first of these blocks


def bare(model: nn.Module) -> nn.Module:
    """The model inside wrappers that hide its function: torch.compile, DistributedDataParallel, DataParallel."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # compiled models have no second derivative
            model = cast(nn.Module, model._orig_mod)
        else:
            return model


def elsewhere(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    task: Callable[[nn.Module], R],
    statistics: Statistics = "running",
    precision: Precision = "float32",
) -> R:
    """`task(model)` with other weights in place of the model's own.

    The task may run a backward pass too: activation checkpointing then recomputes with the same weights.
    """
    held: dict[str, Tensor] = {f"model.{name}": w for name, w in weights.items()}
    for name, m in model.named_modules():
        if getattr(m, "max_norm", None) is not None:  # such an embedding writes into its weight
            key = f"{name}.weight" if name else "weight"
            held[f"model.{key}"] = weights.get(key, m.weight.detach()).clone()
    # a forward pass may write into buffers
    held |= {f"model.{name}": b.clone() for name, b in model.named_buffers()}
    with undisturbed(model, statistics), computing_in(precision, {w.device.type for w in weights.values()}):
        return functional_call(_Holder(model), held, (task,))  # type: ignore[no-any-return]


class _Holder(nn.Module):
    """Makes any task on a model the forward pass of a module, which is all that functional_call runs."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, task: Callable[[nn.Module], Any]) -> Any:
        return task(self.model)


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Random numbers of torch, numpy and Python are afterwards as if none had been drawn."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


@contextmanager
def undisturbed(model: nn.Module, statistics: Statistics = "running") -> Iterator[None]:
    """A model whose mode and whose random numbers are as they were when the block ends, however it ends.

    A block inside another one of the same model does nothing, so a long measurement pays for it once.
    """
    if statistics not in get_args(Statistics):
        raise ValueError(f"statistics of normalisation layers are {get_args(Statistics)}, not {statistics!r}")
    key = (id(model), statistics)
    if key in _UNDISTURBED:
        yield
        return
    modules = list(model.modules())
    devices = {p.device.type for m in modules for p in m._parameters.values() if p is not None}
    changed = [m for m in modules if m.training != (statistics == "batch" and "running_mean" in m._buffers)]
    modes = [m.training for m in changed]
    recurrent = [(m, m._flat_weights, m._flat_weight_refs) for m in modules if isinstance(m, nn.RNNBase)]
    plain = _plain_tensors(modules)
    with ExitStack() as stack:
        stack.enter_context(random_numbers_kept())
        stack.enter_context(computing_in("float32", devices))  # also what is made of losses and gradients
        if "cuda" in devices and recurrent:
            stack.enter_context(_without_cudnn())
        try:
            if not _UNDISTURBED:  # the switch is the process's, and threads may measure several models at once
                _FAST_PATH.append(torch.backends.mha.get_fastpath_enabled())
            _UNDISTURBED.add(key)
            torch.backends.mha.set_fastpath_enabled(False)  # without it, losses with and without gradient differ
            for m, training in zip(changed, modes, strict=True):
                _set_mode(m, not training)
            yield
        finally:
            _UNDISTURBED.discard(key)
            for attributes, name, x in plain:  # such as the weight that pruning computes before every pass
                attributes[name] = x
            for rnn, flat, refs in recurrent:  # which keep a list of the weights that they saw last
                rnn._flat_weights, rnn._flat_weight_refs = flat, refs
            for m, training in zip(changed, modes, strict=True):
                _set_mode(m, training)
            if not _UNDISTURBED:
                torch.backends.mha.set_fastpath_enabled(_FAST_PATH.pop())


def _plain_tensors(modules: Sequence[nn.Module]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Tensors that are neither parameters nor buffers, and where they are kept."""
    kinds: set[type] = set().union(*(map(type, vars(m).values()) for m in modules))
    if not any(issubclass(kind, Tensor) for kind in kinds):  # as it mostly is: quicker than to look at them all
        return []
    return [(vars(m), name, x) for m in modules for name, x in vars(m).items() if isinstance(x, Tensor)]


def _set_mode(module: nn.Module, training: bool) -> None:
    if "training" in vars(module):  # past the search that a module makes for a parameter of that name
        object.__setattr__(module, "training", training)
    else:  # a module of TorchScript keeps it elsewhere
        module.training = training


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Recurrent layers of cuDNN have no backward pass in eval mode; its own context would switch TF32 on as well."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """A context in which layers have second derivatives: attention by another backend, weight norm by its formula."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any("WeightNorm" in type(x).__name__ for m in model.modules() for x in (m, *m._forward_pre_hooks.values())):
            stack.enter_context(_WeightNormByFormula())
        yield


class _WeightNormByFormula(TorchFunctionMode):
    """Spells weight norm out: the second derivative of torch's own operator is wrong (seen in 2.13)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._weight_norm:
            v, g, dim = (*args, 0)[:3]
            return v * (g / torch.norm_except_dim(v, 2, (kwargs or {}).get("dim", dim)))
        return func(*args, **(kwargs or {}))


def owned(grads: Sequence[Tensor | None], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that can be written to one by one: autograd may give one tensor twice, or one number everywhere."""
    seen: set[int] = set()
    owned = []
    for g, leaf in zip(grads, leaves, strict=True):
        g = torch.zeros_like(leaf) if g is None else g
        overlapping = g.untyped_storage().data_ptr() in seen or (0 in g.stride() and g.numel() > 1)
        owned.append(g.clone(memory_format=torch.contiguous_format) if overlapping else g)
        seen.add(g.untyped_storage().data_ptr())
    return owned
