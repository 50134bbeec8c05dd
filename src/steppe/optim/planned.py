"""A gradient that a plan has computed and the base optimizer is to apply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer

from .buffers import RunningStatistics, Saved
from .gradients import Gradients
from .site import OptimizerSite


@dataclass
class Planned:
    """A gradient that waits in `p.grad` to be applied."""

    site: OptimizerSite
    statistics: Saved  # as before the step
    gradients: Gradients  # held: reading `p.grad` is quicker while somebody has it
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


class Applying(Protocol):
    """Has the base optimizer take a planned step, unless that would do harm; a step that is refused leaves no trace."""

    def __call__(self, base: Optimizer, planned: Planned, statistics: RunningStatistics) -> None: ...
    def undo_(self, values: Tensor, before: Tensor) -> None:
        """Puts back what the last step changed elsewhere, if it was refused."""
        ...


def unplanned(method: str) -> RuntimeError:
    """What is said of a step that no pass has been run for."""
    return RuntimeError(
        f"{method} evaluates the loss several times a step. Either call opt.step(closure), "
        "or run `for turn in opt.passes(): turn.backward(loss)` before opt.step()."
    )
