"""What happens to a step whose losses or gradients are not finite: it raises or is skipped, and leaves no trace.

`FiniteCheck` collects the evidence while a plan runs. `HostCheck` looks at it once per eager step, which waits for the
device. `DeviceGuard` refuses the step on the device itself, inside a captured step, and the host raises later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core.vector import Space, Vector
from .base import STEP, OptimizerSite, step_unless
from .buffers import RunningStatistics, Saved
from .workers import Replicas


@dataclass
class Planned:
    """A gradient that waits in `p.grad` to be applied."""

    site: OptimizerSite
    statistics: Saved  # as before the step
    gradients: object  # held: reading `p.grad` is quicker while somebody has it
    found: Tensor | None  # 0 if every loss and gradient of the step is finite; None: nobody looks
    overflow: bool = False  # a gradient scaler skips this step
    versions: list[int] = field(default_factory=list)  # of the statistics after the passes

    def after(self, earlier: Planned) -> Planned:
        """The same, added to a gradient that waited already."""
        found = None if self.found is None or earlier.found is None else self.found + earlier.found
        return Planned(self.site, earlier.statistics, self.gradients, found, self.overflow or earlier.overflow)

    @property
    def stands(self) -> bool:
        """Whether nobody else has written the statistics since the passes."""
        return self.statistics.at.versions() == self.versions

    @property
    def finite(self) -> bool:
        """Whether nothing speaks against the step; waits for the device."""
        return not self.overflow and (self.found is None or not self.found)  # NaN is true

    def apply(self, base: Optimizer) -> None:
        """Steps the base optimizer and keeps what the plan wants kept."""
        with self.site.settings_applied():
            base.step()
        self.site.commit()


def unplanned(method: str) -> RuntimeError:
    """What is said of a step that no pass has been run for."""
    return RuntimeError(
        f"{method} evaluates the loss several times a step. Either call opt.step(closure), "
        "or run `for turn in opt.passes(): turn.backward(loss)` before opt.step()."
    )


SLOTS = 1024
_PAGES: list[Tensor] = []
_FREE: list[Tensor] = []


class FiniteCheck:
    """Collects one number per loss and gradient of a step; all must be finite."""

    def __init__(self, space: Space):
        self._space = space
        self._numbers: list[Tensor] = []

    def see(self, loss: Tensor | None, grad: Vector | None) -> None:
        self._numbers += [] if loss is None else [loss]
        self._numbers += [] if grad is None else [grad.norm()]

    def total(self, settings: Iterable[Any], replicas: Replicas) -> Tensor:
        """0 if all numbers are finite on every worker, else NaN.

        Of the settings only NaN counts: SA-SAM's theta starts at infinity.
        """
        space = self._space
        numbers = self._numbers + [torch.where(v.isinf(), 0, v) for v in settings if isinstance(v, Tensor)]
        # times 0 first: a sum of large finite numbers may overflow
        total = torch.stack([x.to(space.device, space.precision) for x in numbers]).mul_(0).sum()
        return replicas.mean(total) if replicas.known else total


@dataclass(frozen=True)
class HostCheck:
    """Applies a finite step; raises for any other, or skips it."""

    on_nonfinite: str | None

    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None:
        if planned.finite:
            planned.apply(base)
            return
        statistics.restore(planned.statistics)
        if self.on_nonfinite != "skip":
            raise nonfinite(planned.site.step)


class DeviceGuard:
    """Applies steps whose numbers are finite and counts the others; needs a fused base, which obeys `found_inf`.

    With `stop`, nothing moves any more after the first step that was refused, so that the error raised later finds
    everything as it was before that step.
    """

    def __init__(self, device: torch.device, *, stop: bool):
        self._stop = stop
        self.sets: set[str] = set()  # the group options that steps have set
        self.flag = torch.zeros((), device=device)  # 1.0 if a step is refused, else 0.0
        self._watched = False  # whether it says so of the last step
        self._refused = torch.zeros((), device=device)  # how many
        self._seen = _host_number() if device.type == "cuda" else torch.zeros(())  # the same, read without waiting

    @torch.no_grad()
    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None:
        site, found = planned.site, planned.found
        self.sets |= site.settings.keys()
        self._watched = found is not None
        if found is None:
            planned.apply(base)
            return
        refused = found != 0
        self.flag.copy_(refused | (self.flag != 0) if self._stop else refused)
        site.refuse_where(self.flag)
        with site.settings_applied():
            step_unless(base, self.flag)
        planned.statistics.at.set_where(self.flag, planned.statistics.values)
        self._refused.add_(self.flag)
        self._seen.copy_(self._refused, non_blocking=True)
        site.commit()

    def undo_(self, values: Tensor, before: Tensor) -> None:
        """Puts back what the last step changed elsewhere, if it was refused."""
        if self._watched:
            values.copy_(torch.where(self.flag != 0, before, values))

    @property
    def seen(self) -> int:
        """How many steps are known to have been refused; the device may be further."""
        return int(self._seen)

    def counted(self) -> int:
        """How many steps were refused; waits for the device."""
        return int(self._refused)

    def check(self, groups: Sequence[dict[str, Any]], wait: bool) -> None:
        """Raises if a step is known to have been refused, with everything as it was before that step."""
        refused = self.counted() if wait or self.seen else 0
        if refused:
            for number in (self.flag, self._refused, self._seen):
                number.zero_()
            step = groups[0][STEP] - refused
            for group in groups:
                group[STEP] = step
            raise nonfinite(step, later=True)


def nonfinite(step: int, later: bool = False) -> FloatingPointError:
    """The error for a step that was not taken, raised at once or at a later step."""
    delay = " (A captured step does not wait for the GPU, so this is raised later; settle() raises at once.)"
    return FloatingPointError(
        f"a loss or gradient of step {step} is not finite. Weights, statistics and optimizer state "
        f"are as before the step. Lower the learning rate or rho, look at {'its' if later else 'this'} batch, or skip "
        f"such steps: SharpnessAware(..., on_nonfinite='skip').{delay if later else ''}"
    )


def _host_number() -> Tensor:
    """A number that host and device reach, in memory that is never used for anything else.

    A graph that still runs when its guard is gone writes there, and torch does not know of that.
    """
    if not _FREE:
        _PAGES.append(torch.zeros(SLOTS, pin_memory=True))
        _FREE.extend(_PAGES[-1].unbind())
    return _FREE.pop()
