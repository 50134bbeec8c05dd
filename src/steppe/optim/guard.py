"""Refusing a step that is not finite on the device itself, where nobody waits to hear of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from .fused import step_unless
from .planned import Planned
from .statistics import RunningStatistics


class Guarded:
    """Applies steps whose numbers are finite and counts the others; needs a fused base, which obeys `found_inf`.

    With `stop`, nothing moves any more after the first step that was refused, so that whoever hears of it later
    still finds everything as it was before that step.
    """

    def __init__(self, device: torch.device, *, stop: bool):
        self._stop = stop
        self._last: Tensor | None = None  # whether the last step was refused
        self.sets: set[str] = set()  # the group options that steps have set
        self._refused = torch.zeros((), dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._heard = torch.zeros((), dtype=torch.int64, pin_memory=pinned)  # read without asking the device

    @torch.no_grad()
    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None:
        site = planned.site
        self.sets |= site.settings.keys()
        self._last = None
        if planned.health is None:
            with site.settings_applied():
                base.step()
        else:
            refused = ~torch.isfinite(planned.health)
            if self._stop:
                refused = refused | (self._refused > 0)
            site.refuse_where(refused)
            with site.settings_applied():
                step_unless(base, refused.to(torch.float32))
            statistics.restore_where(refused, planned.statistics)
            self._last = refused
            self._refused += refused
            self._heard.copy_(self._refused, non_blocking=True)
        site.commit()

    def undo_(self, values: Tensor, before: Tensor) -> None:
        """Puts back what the last step changed elsewhere, if it was refused."""
        if self._last is not None:
            values.copy_(torch.where(self._last, before, values))

    @property
    def heard(self) -> int:
        """How many steps are known to have been refused; the device may be further."""
        return int(self._heard)

    def counted(self) -> int:
        """How many steps were refused; waits for the device."""
        return int(self._refused)

    def forget(self) -> None:
        """Starts to count anew."""
        self._refused.zero_()
        self._heard.zero_()
