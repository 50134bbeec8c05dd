"""torch.amp.GradScaler around a step of several passes.

`passes()` unscales every pass and leaves `p.grad` unscaled. The scaler must not divide it again, and its `update()`
must know of an overflow in any pass. So a scaler that is given to an optimizer asks it instead of `p.grad`.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState


class Unscaled(Protocol):
    """An optimizer whose gradients are unscaled already."""

    scaler: Any

    def found_inf_(self) -> Tensor:
        """1.0 if a pass of the step that waits has overflowed, else 0.0; it changes with the next step."""
        ...


def enabled(scaler: Any) -> Any:
    """The scaler, or None if it is disabled."""
    return scaler if scaler is not None and scaler.is_enabled() else None


def ask_optimizers(scaler: Any, device: torch.device) -> None:
    """Has a scaler ask optimizers that unscale for themselves, in `unscale_`, `step` and `update`."""
    scaler.scale(torch.ones((), device=device))  # makes its scale, which `scaler.step(opt, closure)` asks for first
    if not isinstance(vars(scaler).get("_unscale_grads_"), MethodType):
        scaler._unscale_grads_ = MethodType(_unscale_grads_, scaler)


def _unscale_grads_(self: Any, optimizer: Any, *args: Any) -> dict[Any, Tensor]:
    if hasattr(optimizer, "found_inf_") and optimizer.scaler is self:
        overflow: Tensor = optimizer.found_inf_()
        return {overflow.device: overflow}
    return type(self)._unscale_grads_(self, optimizer, *args)  # type: ignore[no-any-return]


def report_overflow(scaler: Any, optimizer: Unscaled) -> None:
    """Lets `scaler.update()` know of this step, unless the scaler has asked already."""
    if scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
