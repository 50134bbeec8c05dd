"""Trials of a user's own `train` function, one at a time: in this process, or in several at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from .._util.processes import Lost, Pool
from .._util.user_code import imported
from .design import EPOCHS, Trial
from .store import Done

Execute = Callable[[Sequence[Trial]], Generator[tuple[Trial, Done]]]
"""Yields trials with their outcomes, in any order; closing it stops them."""


def in_process(train: Callable[[Trial], Any], stopped: Callable[[], str] = str) -> Execute:
    """Return an executor that calls `train` here, trial by trial."""

    def execute(trials: Sequence[Trial]) -> Generator[tuple[Trial, Done]]:
        for trial in trials:
            yield trial, outcome_of(train, trial)
            if stopped():
                return

    return execute


def in_processes(place: str, workers: int, stopped: Callable[[], str]) -> Execute:
    """Return an executor that calls the function `package.module:function` in so many processes."""

    def execute(trials: Sequence[Trial]) -> Generator[tuple[Trial, Done]]:
        with Pool(_imported_outcome, [{}] * min(workers, len(trials))) as pool:
            for (_, trial), answer in pool.results(deque((place, trial) for trial in trials), stopped):
                if isinstance(answer, Lost):
                    raise RuntimeError(
                        f"trial {trial.index} of {trial.method} failed: {answer}. The trials before it are kept; the "
                        "same command resumes"
                    )
                yield trial, answer

    return execute


def _imported_outcome(job: tuple[str, Trial]) -> Done:
    place, trial = job
    return outcome_of(imported(place, "train function"), trial)


def outcome_of(train: Callable[[Trial], Any], trial: Trial) -> Done:
    """Call `train` for a trial, and return what it returned, reported and cost."""
    start = perf_counter()
    try:
        returned = train(trial)
    except FloatingPointError as error:
        return Done(failed=str(error) or "not finite", seconds=perf_counter() - start)
    validation, test = checked(returned)
    check_asked(trial)
    steps, forwards = trial.counted["steps"], trial.counted["forwards"]
    epoch = steps / trial.epochs or 1.0  # forward passes of a step count as many passes over the rows
    curve = [
        {"passes": p["forwards"] / epoch, "seconds": p["seconds"], "validation_error": p["validation_error"]}
        for p in trial.curve
    ]
    return Done.of(
        validation,
        test,
        seconds=perf_counter() - start,
        passes=forwards / steps if steps else 0.0,
        curve=curve,
        rung=trial.rung,
        stopped=trial.should_prune() and trial.curve[-1]["epoch"] < trial.epochs,
    )


def check_asked(trial: Trial) -> None:
    """Raise ValueError if `train` has ignored what makes the trial: then trials differ by their seeds alone."""
    if "method" not in trial.asked:
        raise ValueError("train ignores the trial's method: build the optimizer by `opt = trial.optimizer(model)`")
    if ignored := [name for name in vars(trial)["settings"] if name not in trial.asked]:
        name = ignored[0]
        how = "train for trial.epochs epochs" if name == EPOCHS else f"read trial[{name!r}], or leave it out"
        raise ValueError(f"train ignores {name}, a setting of the space: {how}")


def checked(returned: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what `train` returned as two arrays of flags; raise one clear error otherwise."""
    wanted = "train returns two arrays, which validation rows and which test rows are classified correctly"
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        what = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"{type(returned).__name__}"
        raise TypeError(f"{wanted}, and it returned {what}: end it with `return validation_correct, test_correct`")
    found = []
    for name, value in zip(("validation", "test"), returned, strict=True):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.ndim == 0:
            raise TypeError(f"{wanted}, and its {name} is the number {array}: return predicted == labels, not the mean")
        if array.size < 2:
            why = "validation selects among trials: set rows aside" if name == "validation" else "give test rows"
            raise ValueError(f"{wanted}, and there are {array.size or 'no'} {name} rows: {why}")
        if array.ndim != 1 or not np.isin(array, (0, 1)).all():
            what = f"has shape {array.shape} and type {array.dtype}"
            raise TypeError(f"{wanted}, and its {name} {what}: return one true or false per row")
        found.append(array.astype(bool))
    return found[0], found[1]
