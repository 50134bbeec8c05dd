"""A gradient that a plan has computed and the base optimizer is to apply."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer

from .gradients import Gradients
from .site import OptimizerSite
from .statistics import RunningStatistics, Saved


@dataclass
class Planned:
    """A gradient that waits in `p.grad` to be applied."""

    site: OptimizerSite
    statistics: Saved  # as before the step
    gradients: Gradients  # held: reading `p.grad` is quicker while somebody has it
    health: Tensor | None  # not finite if any loss or gradient of the step was not

    def after(self, earlier: Planned) -> Planned:
        """The same, added to a gradient that waited already."""
        health = None if self.health is None or earlier.health is None else self.health + earlier.health
        return Planned(self.site, earlier.statistics, self.gradients, health)


class Applying(Protocol):
    """Has the base optimizer take a planned step, unless that would do harm; a step that is refused leaves no trace."""

    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None: ...
    def undo_(self, values: Tensor, before: Tensor) -> None:
        """Puts back what the last step changed elsewhere, if it was refused."""
        ...


@dataclass(frozen=True)
class Checked:
    """Looks whether everything is finite, which waits for the device, and raises or skips."""

    on_nonfinite: str | None

    def undo_(self, values: Tensor, before: Tensor) -> None:
        """A refused step raises, or shows in the number of steps taken."""

    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None:
        # first: to ask a fused base, which refuses on the device, and to look then took no less time (benchmarks)
        if planned.health is None or isfinite(planned.health):
            with planned.site.settings_applied():
                base.step()
            planned.site.commit()
            return
        statistics.restore(planned.statistics)
        if self.on_nonfinite != "skip":
            raise nonfinite(planned.site.step)


def nonfinite(step: int) -> FloatingPointError:
    """What is said of a step that was not taken."""
    return FloatingPointError(
        f"a loss or gradient of step {step} is not finite. Weights, statistics and optimizer state "
        "are as before the step. Lower the learning rate or rho, look at this batch, or skip such steps: "
        "SharpnessAware(..., on_nonfinite='skip')."
    )
