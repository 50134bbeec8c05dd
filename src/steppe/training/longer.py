"""Making a run longer: it ends as a run of that length would, or it is refused.

A run of another length is the same run up to where it is, if nothing so far follows from the number of steps. A
finished run has evaluated and recorded its last epoch as the last one, which it is no longer, and so it goes back to
the checkpoint before its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import checkpoint, records
from .checkpoint import PREVIOUS, Loaded
from .config import Config
from .folder import LENGTH
from .optimizer import finds_lr, options_of
from .position import Course, Position
from .schedule import learning_rate


def alike(before: Config, config: Config) -> bool:
    """Whether two configurations ask for the same number of epochs and steps."""
    return all(getattr(before, name) == getattr(config, name) for name in LENGTH)


def longer(path: Path, said: Mapping[str, Any], before: Config, config: Config, done: Loaded) -> Loaded:
    """The checkpoint from which a run of another length goes on; raises if there is none."""
    per_epoch = said["steps_per_epoch"]
    then, now = Course(said["steps"], per_epoch), Course(config.steps or config.epochs * per_epoch, per_epoch)
    if then == now:
        return done
    old, new = asdict(before), asdict(config)
    asked = "; ".join(f"{k} was {old[k]!r} and is now {new[k]!r}" for k in LENGTH if old[k] != new[k])
    if now.steps < then.steps:
        raise ValueError(f"{path} cannot be made shorter: {asked}. Give another out.")
    if done.about.finished:
        previous = checkpoint.loaded(path, PREVIOUS)
        if previous is None:
            raise ValueError(
                f"{path} cannot be made longer: {asked}, its last epoch would not be the last one, and {PREVIOUS} is "
                "not there to train it again from. Give another out."
            )
        records.read(path, previous.about.records)
        done = previous
    why = _other_past(config, then, now, done.about.position)
    if why:
        raise ValueError(
            f"{path} cannot be made longer: {asked}, and what it is so far would not be the beginning of a run of that "
            f"length, because {why}. Give another out."
        )
    return done


def _other_past(config: Config, then: Course, now: Course, done: Position) -> str:
    """What would have been another in a run of the other length, up to there; empty if nothing."""
    options = options_of(config, then)
    if options != options_of(config, now):
        return f"the method {config.method} follows from the number of steps"
    taken = then.taken(done)
    for step in range(min(taken, 1) if finds_lr(config, options) else taken):
        was, would_be = (learning_rate(config, step, course.steps) for course in (then, now))
        if was != would_be:
            unwarmed = replace(config, warmup=0.0)
            warm = learning_rate(unwarmed, step, then.steps) == learning_rate(unwarmed, step, now.steps)
            what = "warmup" if warm else f"schedule {config.schedule}"
            return (
                f"the learning rate of its {what} follows from the number of steps: in step {step + 1} it was "
                f"{was:.6g} and would be {would_be:.6g}"
            )
    return _other_average(config, then, now, taken)


def _other_average(config: Config, then: Course, now: Course, taken: int) -> str:
    if config.swa is None:
        return ""
    ends = range(every := 1 if config.swa_every == "step" else then.per_epoch, taken + 1, every)
    if all((t > config.swa * then.steps) == (t > config.swa * now.steps) for t in ends):
        return ""
    return f"its average swa, which begins {config.swa:g} of the way on, would have counted other weights"
