"""What happens to a step whose losses or gradients are not finite: it raises or is skipped, and leaves no trace.

`FiniteCheck` collects losses and norms of gradients while a plan runs. `HostCheck` reads their sum once per eager step,
which synchronizes with the device. `DeviceGuard` skips the step on the device, inside a captured step, and the host
raises later.

With a `torch.amp.GradScaler`, `passes()` unscales every pass and leaves `p.grad` unscaled. The scaler must not divide
it again, and its `update()` needs the overflows of all passes: `read_overflow_from_optimizers` makes a scaler read them
from the optimizer instead of `p.grad`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from ..core.vector import Space, Vector, by_device_and_dtype
from .base import STEP, OptimizerContext, step_unless
from .forward_state import Snapshot
from .workers import Replicas


@dataclass
class Planned:
    """A gradient in `p.grad` that is not applied yet.

    Parameters
    ----------
    context
        The step's view of the base optimizer.
    before
        The forward state from before the step.
    gradients
        Kept alive: torch reads `p.grad` faster while another reference exists.
    total
        0 if every loss and gradient of the step is finite, else NaN; None without a check.
    overflow
        Whether the GradScaler skips this step.
    loss
        The loss of the first pass, which `step()` returns.
    versions
        Versions of its tensors after the passes.

    """

    context: OptimizerContext
    before: Snapshot
    gradients: object
    total: Tensor | None
    overflow: bool = False
    loss: Tensor | None = None
    versions: list[int] = field(default_factory=list)

    def after(self, earlier: Planned) -> Planned:
        """The same gradient, accumulated on an earlier one."""
        total = None if self.total is None or earlier.total is None else self.total + earlier.total
        self.context.moves += earlier.context.moves
        loss = self.loss if self.loss is None or earlier.loss is None else earlier.loss + self.loss
        return Planned(self.context, earlier.before, self.gradients, total, self.overflow or earlier.overflow, loss)

    @property
    def current(self) -> bool:
        """Whether nobody has written to the forward state since the passes."""
        return self.before.tensors.versions() == self.versions

    @property
    def wanted(self) -> bool:
        """Whether the gradient is still there and could be applied; a scaler skips others. Synchronizes."""
        return any(p.grad is not None for p in self.context.space.params) and self.finite

    @property
    def finite(self) -> bool:
        """Whether the step may be applied; synchronizes with the device."""
        return not self.overflow and (self.total is None or not self.total)  # NaN is true

    def apply(self, base: Optimizer) -> None:
        """Steps the base optimizer and stores the plan's vectors and options."""
        with self.context.settings_applied():
            base.step()
        self.context.apply_moves()
        self.context.commit()


SLOTS = 1024
_PAGES: list[Tensor] = []
_FREE: list[Tensor] = []


class FiniteCheck:
    """Collects the losses and gradients of a step, all of which must be finite."""

    def __init__(self, space: Space):
        self._space = space
        self._numbers: list[Tensor] = []
        self._flag: Tensor | None = None  # 1.0 if a gradient was not finite

    def add(self, loss: Tensor | None, grad: Vector | None) -> None:
        """Adds a loss and a gradient."""
        first = not self._numbers
        if loss is not None:
            self._numbers.append(loss)
        if grad is None:
            return
        # most methods need the norm of the first gradient anyway, and a norm of many tensors takes five times as long
        if first or self._space.device.type != "cuda":
            self._numbers.append(grad.norm())
        else:
            self._flag = nonfinite_flag(grad.chunks, self._flag)

    def total(self, settings: Iterable[Any], replicas: Replicas) -> Tensor:
        """0 if all numbers are finite on every worker, else NaN or more than 0.

        Of the settings only NaN counts: SA-SAM's theta starts at infinity.
        """
        device, precision = self._space.device, self._space.precision
        numbers = self._numbers + [torch.where(v.isinf(), 0, v) for v in settings if isinstance(v, Tensor)]
        together = torch.stack([x.to(device, precision) for x in numbers])
        # times 0 first: a sum of large finite numbers may overflow
        total = together.mul_(0).sum() if self._flag is None else nonfinite_flag([together], self._flag)
        return replicas.agreed(total)


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


@dataclass(frozen=True)
class HostCheck:
    """Applies a finite step; raises for any other, or skips it."""

    on_nonfinite: str | None

    def __call__(self, base: Optimizer, planned: Planned) -> None:
        if planned.finite:
            planned.apply(base)
            return
        planned.before.restore()
        if self.on_nonfinite != "skip":
            raise nonfinite(planned.context.step)


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
    def __call__(self, base: Optimizer, planned: Planned) -> None:
        context, total = planned.context, planned.total
        self.sets |= context.settings.keys()
        self._watched = total is not None
        if total is None:
            planned.apply(base)
            return
        skip = total != 0
        self.flag.copy_(skip | (self.flag != 0) if self._stop else skip)
        context.revert_where(self.flag)
        with context.settings_applied():
            step_unless(base, self.flag)
        context.apply_moves()
        planned.before.restore_where(self.flag)
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


class Unscaled(Protocol):
    """An optimizer whose gradients are unscaled already."""

    scaler: Any

    def found_inf_(self) -> Tensor:
        """1.0 if a pass of the planned step has overflowed, else 0.0; the next step overwrites it."""
        ...


def enabled(scaler: Any) -> Any:
    """The scaler, or None if it is disabled."""
    return scaler if scaler is not None and scaler.is_enabled() else None


def read_overflow_from_optimizers(scaler: Any, device: torch.device) -> None:
    """Makes `unscale_`, `step` and `update` of a scaler read the overflow of optimizers that unscale gradients."""
    scaler.scale(torch.ones((), device=device))  # creates its scale tensor, which `scaler.step(opt, closure)` needs
    if not isinstance(vars(scaler).get("_unscale_grads_"), MethodType):
        scaler._unscale_grads_ = MethodType(_unscale_grads_, scaler)
        scaler.scale = MethodType(_scale, scaler)


def _unscale_grads_(self: Any, optimizer: Any, *args: Any) -> dict[Any, Tensor]:
    if hasattr(optimizer, "found_inf_") and optimizer.scaler is self:
        overflow: Tensor = optimizer.found_inf_()
        return {overflow.device: overflow}
    return type(self)._unscale_grads_(self, optimizer, *args)  # type: ignore[no-any-return]


def _scale(self: Any, outputs: Any) -> Any:
    self.has_scaled = True
    return type(self).scale(self, outputs)


def is_scaled(loss: Tensor, scaler: Any) -> bool:
    """Whether a loss is the result of `scaler.scale`, a product with its scale."""
    factor = getattr(loss.grad_fn, "_saved_other", None)
    return isinstance(factor, Tensor) and factor.data_ptr() == scaler._scale.data_ptr()


def report_overflow(scaler: Any, optimizer: Unscaled) -> None:
    """Tells `scaler.update()` of this step's overflow, unless the scaler has read it already."""
    if scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
        scaler.unscale_(optimizer)
