"""The learning rate as a function of the step alone, so that a run may stop and go on anywhere."""

from __future__ import annotations

from math import cos, pi

from .config import Config


def learning_rate(config: Config, step: int, steps: int) -> float:
    """The learning rate of a step, from 0 to steps - 1: a linear warm-up, then the fall that the config names."""
    warm = round(config.warmup * steps)
    if step < warm:
        return config.lr * (step + 1) / warm
    gone = (step - warm) / max(steps - warm, 1)  # of the way after the warm-up
    match config.schedule:
        case "constant":
            return config.lr
        case "cosine":  # Loshchilov & Hutter 2017, without restarts, to zero
            return config.lr * (1 + cos(pi * gone)) / 2
        case "linear":
            return config.lr * (1 - gone)
        case "multistep":  # milestones are fractions of the whole run
            return config.lr * config.decay ** sum(step >= m * steps for m in config.milestones)
