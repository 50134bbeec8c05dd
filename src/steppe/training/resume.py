"""The checkpoint that a run resumes from, also with more epochs or steps than before.

A longer run resumes only if it ends bit for bit as a run of that length would: nothing so far may depend on the number
of steps. A finished run has evaluated its last epoch as the last one, which it is no longer, and so it resumes from the
checkpoint before its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import checkpoint, records
from .checkpoint import PREVIOUS, Loaded
from .config import Config
from .folder import LENGTH, changes, config_in, refuse_changes
from .problem import finds_lr, options_of
from .schedule import Course, Position, learning_rate, prune_step


def resume_point(path: Path, content: Mapping[str, Any] | None, config: Config) -> Loaded | None:
    """Return the checkpoint from which a run with this configuration resumes, or None if it starts.

    Parameters
    ----------
    path
        The run's folder.
    content
        The content of its run.yaml, or None if there is none.
    config
        The configuration of this start.

    Raises
    ------
    ValueError
        If the folder holds a run with another configuration, or one that cannot be made longer.

    """
    before = config_in(path, content) if content is not None else config
    refuse_changes(path, before, config)
    done = checkpoint.last_whole(path, lambda header: records.read(path, header.records))
    if done is None or content is None or all(getattr(before, name) == getattr(config, name) for name in LENGTH):
        return done
    return _longer(path, content, before, config, done)


def _longer(path: Path, content: Mapping[str, Any], before: Config, config: Config, done: Loaded) -> Loaded:
    """Return the checkpoint from which a run of another length resumes; raise ValueError if there is none."""
    per_epoch = content["steps_per_epoch"]
    then, now = Course(content["steps"], per_epoch), Course(config.steps or config.epochs * per_epoch, per_epoch)
    if then == now:
        return done
    change = changes(*({k: getattr(c, k) for k in LENGTH} for c in (before, config)))
    if now.steps < then.steps:
        raise ValueError(f"{path} cannot be made shorter: {change}. Give another out.")
    if done.about.finished:
        previous = checkpoint.loaded(path, PREVIOUS)
        if previous is None:
            raise ValueError(
                f"{path} cannot be made longer: {change}, its last epoch has to be trained again, and {PREVIOUS} is "
                "not there to resume from. Give another out."
            )
        records.read(path, previous.about.records)
        done = previous
    why = _different_past(config, then, now, done.about.position)
    if why:
        raise ValueError(
            f"{path} cannot be made longer: {change}, and a run of that length would have begun differently, because "
            f"{why}. Give another out."
        )
    return done


def _different_past(config: Config, then: Course, now: Course, position: Position) -> str:
    """Return what would differ, up to a position, in a run of the other length; empty if nothing would."""
    options = options_of(config, then)
    if options != options_of(config, now):
        return f"the method {config.method} depends on the number of steps"
    steps = then.taken(position)
    for step in range(min(steps, 1) if finds_lr(config, options) else steps):
        was, would_be = (learning_rate(config, step, course.steps) for course in (then, now))
        if was != would_be:
            no_warmup = replace(config, warmup=0.0)
            same = learning_rate(no_warmup, step, then.steps) == learning_rate(no_warmup, step, now.steps)
            what = "warmup" if same else f"schedule {config.schedule}"
            return (
                f"the learning rate of its {what} depends on the number of steps: in step {step + 1} it was "
                f"{was:.6g} and would be {would_be:.6g}"
            )
    if config.prune:
        before, after = prune_step(config, then.steps), prune_step(config, now.steps)
        if before != after and steps > min(before, after):
            return f"its weights would have been pruned before step {after + 1} and not before step {before + 1}"
    if config.swa is not None:
        ends = range(every := 1 if config.swa_every == "step" else then.per_epoch, steps + 1, every)
        if any((t > config.swa * then.steps) != (t > config.swa * now.steps) for t in ends):
            return f"its average swa, which begins after {config.swa:g} of the run, would have averaged other weights"
    return ""
