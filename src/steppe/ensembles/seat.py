"""A member's place among members that are moved together, as its loop sees it: an optimizer that does nothing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch import Tensor

from ..optim.engine import SharpnessAware
from ..optim.site import STEP
from ..probe import Probe
from ..rows import positions

PLAIN, BY_METHOD = range(2)  # the parts of a step: normal rows first, as SharpBalance's own plan has it


class Turn:
    """One pass of a member: which rows it is on; the gradient is found for all members elsewhere."""

    held_out = False

    def __init__(self, probe: Probe, chosen: Tensor | None):
        self.probe, self._chosen = probe, chosen

    def rows(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self._chosen is None:
            return tensors
        return tuple(t[self._chosen.to(t.device, non_blocking=True)] for t in tensors)

    def backward(self, losses: Tensor) -> None:
        pass


class Seat:
    """What a member's loop takes for its optimizer."""

    applying = None  # nothing is refused on the device, unseen

    def __init__(self, opt: SharpnessAware):
        self.opt = opt
        self.shares: dict[int, float] = {}  # of the batch, by the parts of the step under way
        self.part = PLAIN  # under way
        self.next: Probe | None = None  # of this part; None after its last pass
        self.trouble = False  # in this step

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.opt.param_groups

    @property
    def further(self) -> bool:
        """Whether this step has another part after this one."""
        return max(self.shares) > self.part

    def passes(self, mask: Tensor | None = None) -> Generator[Turn]:
        chosen: dict[int, Tensor | None] = {BY_METHOD: None}
        self.shares = {BY_METHOD: 1.0}
        if mask is not None:
            found = {part: positions(mask, part == BY_METHOD) for part in (PLAIN, BY_METHOD)}
            self.shares = {part: len(rows) / len(mask) for part, rows in found.items() if len(rows)}
            chosen = {part: None if share == 1 else found[part] for part, share in self.shares.items()}
        for part, rows in chosen.items():
            self.part, self.next = part, Probe()  # every plan starts at the weights themselves
            while self.next is not None:
                yield Turn(self.next, rows)

    def step(self) -> None:
        """Counts the step, which has been taken for all members."""
        for group in self.param_groups:
            if self.trouble:
                raise FloatingPointError(
                    f"a loss or gradient of step {group[STEP]} is not finite. Lower the learning rate or rho."
                )
            group[STEP] += 1

    def settle(self) -> None:
        """Nobody has to wait to hear of a refused step."""

    def state_dict(self) -> Any:
        return self.opt.state_dict()
