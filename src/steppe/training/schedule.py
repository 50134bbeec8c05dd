"""When things happen in a run: epochs, learning rate and pruning as functions of the step, exchanges of an ensemble."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import cos, pi

from ..methods.facts import sets_lr
from .config import Config

EXCHANGE = re.compile(r"exchanged@(\d+)(?:\+(\d+))?")


@dataclass(frozen=True, order=True)
class Position:
    """Number of completed epochs, and of steps taken in the current one."""

    epoch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, step {self.step}"


@dataclass(frozen=True)
class Timeline:
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


def settings_at(config: Config, step: int, timeline: Timeline) -> dict[str, float | str]:
    """Return what a step does that may follow from the length of the run, by name."""
    settings: dict[str, float | str] = {}
    begun = ("yet to begin", "begun")
    if step == 0 or not sets_lr(config.method):
        kind = f"learning rate (schedule {config.schedule} with warmup {config.warmup:g})"
        settings[kind] = learning_rate(config, step, timeline.steps)
    if config.prune:
        settings["pruning"] = begun[step >= prune_step(config, timeline.steps)]
    if config.swa is not None and (config.swa_every == "step" or (step + 1) % timeline.per_epoch == 0):
        settings["average swa"] = begun[step + 1 > config.swa * timeline.steps]
    return settings


@dataclass(frozen=True)
class Exchange:
    """Members of an ensemble exchange scores of rows after epoch `first` and then, if given, every `every` epochs."""

    first: int
    every: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1 or (self.every is not None and self.every < 1):
            raise ValueError(f"scores are exchanged after 1 epoch or more, and every 1 or more, not {self}")

    @classmethod
    def of(cls, sharp_rows: str | None) -> Exchange | None:
        """Parse `exchanged@10` or `exchanged@10+5`; return None for any other text."""
        match = EXCHANGE.fullmatch(sharp_rows or "")
        return None if match is None else cls(int(match[1]), int(match[2]) if match[2] else None)

    def __str__(self) -> str:
        return f"exchanged@{self.first}" + (f"+{self.every}" if self.every is not None else "")

    def last_before(self, epoch: int) -> int | None:
        """Return the epoch of the last exchange before an epoch; None before the first."""
        if epoch < self.first:
            return None
        return self.first if self.every is None else epoch - (epoch - self.first) % self.every

    def epochs(self, of: int) -> list[int]:
        """Return all exchanges of a run of `of` epochs."""
        return list(range(self.first, of, self.every or of))
