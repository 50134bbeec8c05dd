"""A gradient that a plan has computed and the base optimizer is to apply."""

from __future__ import annotations

from dataclasses import dataclass
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
    trouble: Tensor | None  # 0 if every loss and gradient of the step is finite, where anybody wants to know

    def after(self, earlier: Planned) -> Planned:
        """The same, added to a gradient that waited already."""
        trouble = None if self.trouble is None or earlier.trouble is None else self.trouble + earlier.trouble
        return Planned(self.site, earlier.statistics, self.gradients, trouble)


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
        if planned.trouble is None or not planned.trouble:  # what is not a number is true
            with planned.site.settings_applied():
                base.step()
            planned.site.commit()
            return
        statistics.restore(planned.statistics)
        if self.on_nonfinite != "skip":
            raise nonfinite(planned.site.step)


def nonfinite(step: int, later: bool = False) -> FloatingPointError:
    """What is said of a step that was not taken, at once or at a later step."""
    heard = " (No step waits for the GPU, so this is heard only now; settle() after a step hears at once.)"
    return FloatingPointError(
        f"a loss or gradient of step {step} is not finite. Weights, statistics and optimizer state "
        f"are as before the step. Lower the learning rate or rho, look at {'its' if later else 'this'} batch, or skip "
        f"such steps: SharpnessAware(..., on_nonfinite='skip').{heard if later else ''}"
    )


def unplanned(method: str) -> RuntimeError:
    """What is said of a step that no pass has been run for."""
    return RuntimeError(
        f"{method} evaluates the loss several times a step. Either call opt.step(closure), "
        "or run `for turn in opt.passes(): turn.backward(loss)` before opt.step()."
    )
