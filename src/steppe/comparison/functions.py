"""Trials of a user's own `train` function: in this process or in several, one trial at a time each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from .._util.processes import Lost, Pool
from .._util.user_code import imported
from .design import Trial
from .run import in_process
from .store import Done

if TYPE_CHECKING:
    from .run import Execute, Work


def by_function(place: str, workers: int, stopped: Callable[[], str]) -> Execute:
    """Return an executor that calls the function `package.module:function`."""
    if workers == 1:
        here = in_process(imported(place, "train function"))

        def one(works: Sequence[Work]) -> Generator[tuple[Work, Done]]:
            for each in here(works):
                yield each
                if stopped():
                    return

        return one

    def execute(works: Sequence[Work]) -> Generator[tuple[Work, Done]]:
        with Pool(_called, [{}] * min(workers, len(works)), preload=["torch._dynamo"]) as pool:
            jobs = deque((place, *work) for work in works)
            for (_, trial, repeat), answer in pool.results(jobs, stopped):
                if isinstance(answer, Lost):
                    raise RuntimeError(
                        f"trial {trial.index} of {trial.method} failed: {answer}. The trials before it are kept; the "
                        "same command resumes"
                    )
                yield (trial, repeat), answer

    return execute


def _called(job: tuple[str, Trial, int]) -> Done:
    place, trial, repeat = job
    ((_, done),) = in_process(imported(place, "train function"))([(trial, repeat)])
    return done
