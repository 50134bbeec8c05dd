"""The engine inside another library's optimizer wrapper."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn

from ..core.rows import whole
from ..optim.engine import SharpnessAware
from ..optim.finite import enabled
from ..optim.forward_state import kept_attributes, put_back

EXAMPLE = "steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), steppe.SAM(rho=0.05))"


_FROM_LIBRARIES: weakref.WeakSet[Any] = weakref.WeakSet()  # scalers that `bind` gave to engines


def find_engine(optimizer: Any) -> SharpnessAware | None:
    """The `SharpnessAware` that an optimizer is or wraps, if any."""
    while type(optimizer) is not SharpnessAware and optimizer is not None:  # Fabric's wrapper is a subclass
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


def engine_of(optimizer: Any) -> SharpnessAware:
    """The `SharpnessAware` that an optimizer is or wraps."""
    engine = find_engine(optimizer)
    if engine is None:
        raise TypeError(f"the optimizer is {type(optimizer).__name__}, not a SharpnessAware: make one by {EXAMPLE}")
    return engine


def bind(engine: SharpnessAware, model: nn.Module | None, scaler: Any) -> None:
    """Gives an engine the model as it is trained, with its wrapper, and the library's GradScaler."""
    model = engine.model if model is None else model
    if engine.scaler is not scaler and enabled(engine.scaler) is not None and engine.scaler not in _FROM_LIBRARIES:
        raise ValueError(
            "the SharpnessAware has a scaler of its own, which does not scale the losses of this training library: "
            "leave out scaler=, and set the precision of the library"
        )
    if scaler is not None:
        _FROM_LIBRARIES.add(scaler)
    if engine.model is not model or engine.scaler is not scaler:
        engine.__setstate__({**engine.__getstate__(), "model": model, "scaler": scaler})


def check_no_static_graph(model: Any) -> None:
    """Raises for a wrapper that cannot leave the gradients of micro-batches before the last to each worker."""
    if getattr(model, "static_graph", False):
        raise RuntimeError(
            "DistributedDataParallel(static_graph=True) has to average the first gradient that it sees, and of several "
            "micro-batches per step only the last one is averaged: leave out static_graph, or do not accumulate"
        )


def no_sync(model: Any) -> AbstractContextManager[Any]:
    """The context of a micro-batch before the last of a step, whose gradient DDP does not average."""
    check_no_static_graph(model)
    context: AbstractContextManager[Any] = getattr(model, "no_sync", nullcontext)()
    return context


def check_whole_batch(probe: Any, method: object, library: str) -> None:
    """Raises for a probe that a loss over the whole batch, with a backward pass, does not answer."""
    if probe.rows is not whole or not probe.grad:
        raise RuntimeError(
            f"{type(method).__name__} uses parts of the batch, and {library} computes losses and gradients of whole "
            "batches only: write a loop over opt.passes(), or use a method on whole batches such as steppe.SAM"
        )


@contextmanager
def counted_once(number: int, *objects: Any, modules: Iterable[Any]) -> Generator[None]:
    """Pass `number` of a step: after the first one, what was counted meanwhile is put back.

    That is every number, tensor, list and dictionary among the attributes of `objects`, and of the metrics of
    torchmetrics in `modules`. Later passes see the same batch again, at perturbed weights.
    """
    if not number:
        yield
        return
    if (torchmetrics := sys.modules.get("torchmetrics")) is not None:
        parts = [part for module in modules if isinstance(module, nn.Module) for part in module.modules()]
        objects += tuple(part for part in parts if isinstance(part, torchmetrics.Metric))
    kept = [kept_attributes(o, tensors=True) for o in objects]
    try:
        yield
    finally:
        put_back(kept)
