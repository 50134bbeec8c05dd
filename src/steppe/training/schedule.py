"""How long a run is, where it is, and its learning rate as a function of the step alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from .config import Config


@dataclass(frozen=True, order=True)
class Position:
    """Number of completed epochs, and of steps taken in the current one."""

    epoch: int = 0
    step: int = 0

    def stepped(self) -> Position:
        """Return the position one step later."""
        return Position(self.epoch, self.step + 1)

    def recorded(self) -> Position:
        """Return the position at the start of the next epoch."""
        return Position(self.epoch + 1)

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, step {self.step}"


@dataclass(frozen=True)
class Course:
    """All steps of a run, divided into epochs; the last epoch may be short."""

    steps: int
    per_epoch: int

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.per_epoch)

    def length(self, epoch: int) -> int:
        """Return the number of steps in one epoch."""
        return min(self.per_epoch, self.steps - epoch * self.per_epoch)

    def taken(self, position: Position) -> int:
        """Return the number of steps from the start of the run to a position."""
        return min(position.epoch * self.per_epoch + position.step, self.steps)


def learning_rate(config: Config, step: int, steps: int) -> float:
    """Return the learning rate of a step in 0 .. steps - 1: a linear warm-up, then `config.schedule`."""
    warmup_steps = round(config.warmup * steps)
    if step < warmup_steps:
        return config.lr * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(steps - warmup_steps, 1)  # fraction of the steps after the warm-up
    match config.schedule:
        case "constant":
            return config.lr
        case "cosine":  # Loshchilov & Hutter 2017, without restarts, to zero
            return config.lr * (1 + cos(pi * progress)) / 2
        case "linear":
            return config.lr * (1 - progress)
        case "multistep":  # milestones are fractions of the whole run
            return config.lr * config.decay ** sum(step >= m * steps for m in config.milestones)


def prune_step(config: Config, steps: int) -> int:
    """Return the step, in 0 .. steps - 1, before which weights are pruned."""
    return min(round(config.prune_at * steps), steps - 1)
