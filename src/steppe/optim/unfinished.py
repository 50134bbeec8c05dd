"""A loop over `passes()` that was left, and whose iterator still lives: saving the model closes it first."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from .engine import SharpnessAware


class _CloseUnfinished:
    """A hook of a module that closes the unfinished loop of an optimizer, as long as that lives."""

    def __init__(self, engine: SharpnessAware):
        self._engine = weakref.ref(engine)

    def __call__(self, *_: Any) -> None:
        if (engine := self._engine()) is not None:
            engine.close_unfinished()

    def __reduce__(self) -> tuple[Any, ...]:
        return type, (slice(None),)  # `slice` does nothing as a hook: a copied or pickled model works without steppe


def close_before_state_dict(
    engine: SharpnessAware, model: nn.Module | None, earlier: weakref.finalize[..., Any] | None
) -> weakref.finalize[..., Any]:
    """Makes `state_dict()` of the model, and of its parts, close an unfinished loop; returns what ends that."""
    if earlier is not None:
        earlier()
    close = _CloseUnfinished(engine)
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)] if model is not None else []
    handles = [m.register_state_dict_pre_hook(close) for m in modules]  # type: ignore[no-untyped-call]
    remove = weakref.finalize(engine, lambda: [handle.remove() for handle in handles])
    remove.atexit = False
    return remove
