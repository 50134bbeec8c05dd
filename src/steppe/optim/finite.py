"""What happens to a step whose losses or gradients are not finite: it raises or is skipped, and leaves no trace.

A `Step` collects losses and norms of gradients while a plan runs, and reads their sum once, which synchronizes with the
device. `DeviceGuard` skips the step on the device, inside a captured step, and the host raises later.

With a `torch.amp.GradScaler`, `passes()` unscales every pass and leaves `p.grad` unscaled. The scaler must not divide
it again, and its `update()` needs the overflows of all passes: `read_overflow_from_optimizers` makes a scaler read them
from the optimizer instead of `p.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from ..core.vector import by_device_and_dtype
from .base import STEP, step_unless

if TYPE_CHECKING:
    from .step import Step

SLOTS = 1024
_PAGES: list[Tensor] = []
_FREE: list[Tensor] = []


def nonfinite_flag(tensors: Sequence[Tensor], flag: Tensor | None = None) -> Tensor:
    """`flag`, or 0.0, on the device; 1.0 if an entry of the tensors is not finite.

    One kernel per dtype: what `torch.amp.GradScaler` runs, with a scale of 1, which leaves the entries as they are.
    """
    flag = torch.zeros((), dtype=torch.float32, device=tensors[0].device) if flag is None else flag
    for group in by_device_and_dtype(tensors):
        own = flag.to(group[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, own, torch.ones_like(own))
        flag = own.to(flag.device)
    return flag


class DeviceGuard:
    """Applies finite steps on the device and counts the others; needs a fused base, which reads `found_inf`.

    Parameters
    ----------
    device
        The device of the weights.
    stop
        Whether all steps after the first non-finite one are skipped too, so that the error, raised later,
        finds everything as it was before that step.

    """

    def __init__(self, device: torch.device, *, stop: bool):
        self._stop = stop
        self.sets: set[str] = set()  # the group options that steps have set
        self.flag = torch.zeros((), dtype=torch.float32, device=device)  # 1.0 if a step is skipped, else 0.0
        self._watched = False  # whether the flag is of the last step
        self._skipped = torch.zeros((), device=device)  # how many steps were skipped
        # the same number, copied asynchronously
        self._seen = _host_number() if device.type == "cuda" else torch.zeros((), device="cpu")

    @torch.no_grad()
    def __call__(self, base: Optimizer, step: Step) -> None:
        context, total = step.context, step.total
        self.sets |= context.settings.keys()
        self._watched = isinstance(total, Tensor)
        if not isinstance(total, Tensor):
            context.apply()
            return
        skip = total != 0
        self.flag.copy_(skip | (self.flag != 0) if self._stop else skip)
        context.revert_where(self.flag)
        with context.settings_applied():
            step_unless(base, self.flag)
        context.apply_moves()
        step.before.restore_where(self.flag)
        self._skipped.add_(self.flag)
        self._seen.copy_(self._skipped, non_blocking=True)
        context.commit()

    def undo_(self, values: Tensor, before: Tensor) -> None:
        """Restores values that the last step changed elsewhere, if it was skipped."""
        if self._watched:
            values.copy_(torch.where(self.flag != 0, before, values))

    @property
    def seen(self) -> int:
        """How many skipped steps the host has seen so far; does not synchronize."""
        return int(self._seen)

    def counted(self) -> int:
        """How many steps were skipped; synchronizes with the device."""
        return int(self._skipped)

    def check(self, groups: Sequence[dict[str, Any]], wait: bool) -> None:
        """Raises if a step was skipped, with everything as it was before that step."""
        skipped = self.counted() if wait or self.seen else 0
        if skipped:
            for number in (self.flag, self._skipped, self._seen):
                number.zero_()
            step = groups[0][STEP] - skipped
            for group in groups:
                group[STEP] = step
            raise nonfinite(step, later=True)


def nonfinite(step: int, later: bool = False) -> FloatingPointError:
    """The error for a step that was not applied, raised at once or at a later step."""
    delay = " (A captured step does not wait for the GPU, so this is raised later; settle() raises at once.)"
    return FloatingPointError(
        f"a loss or gradient of step {step} is not finite. Weights, statistics and optimizer state "
        f"are as before the step. Lower the learning rate or rho, look at {'its' if later else 'this'} batch, or skip "
        f"such steps: SharpnessAware(..., on_nonfinite='skip').{delay if later else ''}"
    )


def _host_number() -> Tensor:
    """A pinned number in memory that is never freed: a graph may write there after its guard is gone."""
    if not _FREE:
        _PAGES.append(torch.zeros(SLOTS, pin_memory=True, device="cpu"))
        _FREE.extend(_PAGES[-1].unbind())
    return _FREE.pop()


def enabled(scaler: Any) -> Any:
    """The scaler, or None if it is disabled."""
    return scaler if scaler is not None and scaler.is_enabled() else None


def read_overflow_from_optimizers(scaler: Any, device: torch.device) -> None:
    """Makes `unscale_`, `step` and `update` of a scaler read the overflow of optimizers that unscale gradients."""
    scaler.scale(torch.ones((), device=device))  # creates its scale tensor, which `scaler.step(opt, closure)` needs
    for method in (_unscale_grads_, scale):  # a pickle finds methods by their names, which are those of the class
        setattr(scaler, method.__name__, MethodType(method, scaler))


def _unscale_grads_(self: Any, optimizer: Any, *args: Any) -> dict[Any, Tensor]:
    if hasattr(optimizer, "found_inf_") and optimizer.scaler is self:
        overflow: Tensor = optimizer.found_inf_()
        return {overflow.device: overflow}
    return type(self)._unscale_grads_(self, optimizer, *args)  # type: ignore[no-any-return]


def scale(self: Any, outputs: Any) -> Any:
    """`GradScaler.scale`, which notes that it was called."""
    self.has_scaled = True
    return type(self).scale(self, outputs)


def is_scaled(loss: Tensor, scaler: Any) -> bool:
    """Whether a loss is the result of `scaler.scale`, a product with its scale."""
    factor = getattr(loss.grad_fn, "_saved_other", None)
    return isinstance(factor, Tensor) and factor.data_ptr() == scaler._scale.data_ptr()


def report_overflow(scaler: Any, optimizer: Optimizer) -> None:
    """Tells `scaler.update()` of this step's overflow, unless the scaler has read it already."""
    if scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
