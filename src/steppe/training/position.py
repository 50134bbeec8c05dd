"""Where a run is, and how long its way is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Position:
    """Epochs that are trained and recorded, and steps taken in the one under way."""

    epoch: int = 0
    step: int = 0

    def stepped(self) -> Position:
        return Position(self.epoch, self.step + 1)

    def recorded(self) -> Position:
        return Position(self.epoch + 1)

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, step {self.step}"


@dataclass(frozen=True)
class Course:
    """All steps of a run, cut into epochs of which the last may be short."""

    steps: int
    per_epoch: int

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.per_epoch)

    def length(self, epoch: int) -> int:
        """The steps of one epoch."""
        return min(self.per_epoch, self.steps - epoch * self.per_epoch)

    def taken(self, position: Position) -> int:
        """The steps from the start of the run to there."""
        return min(position.epoch * self.per_epoch + position.step, self.steps)
