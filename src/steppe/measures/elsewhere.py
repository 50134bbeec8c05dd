"""Runs a model's function at other weights and leaves no trace in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

Statistics = Literal["running", "batch"]  # what normalisation layers use: eval mode, or the batch as in training
R = TypeVar("R")


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
    model: nn.Module, weights: Mapping[str, Tensor], task: Callable[[nn.Module], R], statistics: Statistics = "running"
) -> R:
    """`task(model)` with other weights in place of the model's own.

    The task may run a backward pass too: activation checkpointing then recomputes with the same weights.
    """
    held: dict[str, Tensor] = {f"model.{name}": w for name, w in weights.items()}
    # a forward pass may write into buffers
    held |= {f"model.{name}": b.clone() for name, b in model.named_buffers()}
    with undisturbed(model, statistics):
        return functional_call(_Holder(model), held, (task,))  # type: ignore[no-any-return]


class _Holder(nn.Module):
    """Makes any task on a model the forward pass of a module, which is all that functional_call runs."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, task: Callable[[nn.Module], Any]) -> Any:
        return task(self.model)


@contextmanager
def undisturbed(model: nn.Module, statistics: Statistics = "running") -> Iterator[None]:
    """A model whose mode and whose random numbers are as they were when the block ends, however it ends."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    wanted = {m: statistics == "batch" and "running_mean" in m._buffers for m in model.modules()}
    changed = [m for m, training in wanted.items() if m.training != training]
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([d.index for d in devices if d.index is not None]))
        if devices and any(isinstance(m, nn.RNNBase) for m in wanted):  # cuDNN's have no backward pass in eval mode
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # without it, losses with and without gradient differ
            for m in changed:
                m.training = wanted[m]
            yield
        finally:
            for m in changed:
                m.training = not wanted[m]
            torch.backends.mha.set_fastpath_enabled(fast)


def twice_differentiable() -> Any:
    """A context in which attention has second derivatives, which its fast backends do not."""
    return sdpa_kernel(SDPBackend.MATH)
