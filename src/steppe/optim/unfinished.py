"""What others may not do meanwhile: save or copy the model in a loop over `passes()`, or step the base in our place."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .base import StepsTheBase
from .misuse import COPIED_DISPLACED

if TYPE_CHECKING:
    from .engine import SharpnessAware

_ENGINES: weakref.WeakSet[SharpnessAware] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes unfinished loops before the interpreter shuts torch down, which would abort the process."""
    for opt in list(_ENGINES):
        opt.close_unfinished()


class _CloseUnfinished:
    """A hook of a module that closes the unfinished loop of an optimizer, as long as that lives."""

    def __init__(self, engine: SharpnessAware):
        self._engine = weakref.ref(engine)

    def __call__(self, *_: Any) -> None:
        if (engine := self._engine()) is not None:
            engine.close_unfinished()

    def __reduce__(self) -> tuple[Any, ...]:
        if (engine := self._engine()) is not None and engine.displaced:  # parameters may have been copied before
            raise RuntimeError(COPIED_DISPLACED)
        return type, (slice(None),)  # `slice` does nothing as a hook: a copied or pickled model works without steppe


def guard_pending(
    engine: SharpnessAware, model: nn.Module | None, earlier: weakref.finalize[..., Any] | None
) -> weakref.finalize[..., Any]:
    """Makes `state_dict()` of the model, and of its parts, close an unfinished loop, and copies of it raise.

    A step of the base raises while a plan waits. Returns what ends all this.
    """
    _ENGINES.add(engine)
    if earlier is not None:
        earlier()
    close = _CloseUnfinished(engine)
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)] if model is not None else []
    handles: list[Any] = [m.register_state_dict_pre_hook(close) for m in modules]  # type: ignore[no-untyped-call]
    if hasattr(engine.base, "_optimizer_step_pre_hooks"):
        handles.append(engine.base.register_step_pre_hook(StepsTheBase(engine)))
    remove = weakref.finalize(engine, lambda: [handle.remove() for handle in handles])
    remove.atexit = False
    return remove
