"""Refusing a step that is not finite on the device itself, where nobody waits to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..rote import Rote
from .fused import step_unless
from .planned import Planned, nonfinite
from .site import STEP
from .statistics import RunningStatistics, Saved

SLOTS = 1024
_PAGES: list[Tensor] = []
_FREE: list[Tensor] = []


class Guarded:
    """Applies steps whose numbers are finite and counts the others; needs a fused base, which obeys `found_inf`.

    With `stop`, nothing moves any more after the first step that was refused, so that whoever hears of it later
    still finds everything as it was before that step.
    """

    def __init__(self, device: torch.device, *, stop: bool):
        self._stop = stop
        self.sets: set[str] = set()  # the group options that steps have set
        self.flag = torch.zeros((), device=device)  # 1.0 if a step is refused, else 0.0
        self._watched = False  # whether it says so of the last step
        self._refused = torch.zeros((), device=device)  # how many
        self._heard = _mailbox() if device.type == "cuda" else torch.zeros(())  # the same, read without waiting
        self._told: Any = None  # when the last step was heard of, where all workers have to hear at the same step
        self._ends: tuple[list[Any], Rote] | None = None

    @torch.no_grad()
    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None:
        site, trouble = planned.site, planned.trouble
        self.sets |= site.settings.keys()
        self._watched = trouble is not None
        if trouble is None:
            with site.settings_applied():
                base.step()
            site.commit()
            return
        if trouble is not self.flag:
            refused = trouble != 0
            self.flag.copy_(refused | (self.flag != 0) if self._stop else refused)
        site.refuse_where(self.flag)
        with site.settings_applied():
            step_unless(base, self.flag)
        self._end(planned.statistics)
        site.commit()
        if not site.alone and self.flag.is_cuda:
            self._told = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._told.record()

    def _end(self, saved: Saved) -> None:
        """Takes the statistics back if the step was refused, and counts it."""
        if self._ends is None or not all(map(is_, self._ends[0], (saved.at, *saved.values))):
            # not `saved`, whose memory is used again when nobody has it, and not `self`, which has this
            at, values, flag, refused, heard = saved.at, saved.values, self.flag, self._refused, self._heard

            def end() -> None:
                at.set_where(flag, values)
                refused.add_(flag)
                heard.copy_(refused, non_blocking=True)

            self._ends = [at, *values], Rote(end, self.flag.device)
        self._ends[1]()

    def undo_(self, values: Tensor, before: Tensor) -> None:
        """Puts back what the last step changed elsewhere, if it was refused."""
        if self._watched:
            values.copy_(torch.where(self.flag != 0, before, values))

    @property
    def heard(self) -> int:
        """How many steps are known to have been refused; the device may be further."""
        return int(self._heard)

    def counted(self) -> int:
        """How many steps were refused; waits for the device."""
        return int(self._refused)

    def tell(self, groups: Sequence[dict[str, Any]], wait: bool) -> None:
        """Raises if a step is known to have been refused, with everything as it was before that step."""
        if self._told is not None:
            self._told.synchronize()
        refused = self.counted() if wait or self.heard else 0
        if refused:
            self.forget()
            step = groups[0][STEP] - refused
            for group in groups:
                group[STEP] = step
            raise nonfinite(step, later=True)

    def forget(self) -> None:
        """Starts to count anew, with the flag down."""
        self.flag.zero_()
        self.recount()

    def recount(self) -> None:
        """Starts to count anew."""
        self._refused.zero_()
        self._heard.zero_()


def _mailbox() -> Tensor:
    """A number that both sides reach, in memory that is never used for anything else.

    A recording that is still under way when its guard is gone writes there, and torch does not know of that.
    """
    if not _FREE:
        _PAGES.append(torch.zeros(SLOTS, pin_memory=True))
        _FREE.extend(_PAGES[-1].unbind())
    return _FREE.pop()
