"""Training of an ensemble: all members train from one exchange of scores to the next, in sequence or in processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from .._util.processes import Lost, Pool
from ..data.registry import keep_loaded, loaded_once
from ..training.config import Config
from ..training.entry import train
from ..training.evaluate import corrupted_test
from ..training.folder import RUN, Run, folder_of, open_run
from ..training.problem import data_of
from ..training.schedule import Position
from ..training.stopping import Stopped, stop_signals
from .members import Trained, exchange, exchanges, members_of, save_settings, write_scores
from .strategies import Ensemble

TRIES = 3  # starts of a member whose process dies without progress
Job = tuple[Config, int | None, int]  # a member, the epoch at whose end it stops, and its number of threads


@loaded_once()
def train_ensemble(config: Config, ensemble: Ensemble | None = None, progress: bool | None = None) -> Trained:
    """Train all members, each in its own folder under the ensemble's.

    Call it again to resume: the result is bit-identical.

    Parameters
    ----------
    config
        The configuration from which those of the members are made.
    ensemble
        The settings of the ensemble.
    progress
        Whether to show progress; by default only on a terminal.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = steppe.training.Config(**small, out=folder)
    ...     trained = steppe.ensembles.train_ensemble(config, steppe.ensembles.Ensemble(2, strategy="deep"))
    ...     sorted(path.name for path in trained.path.iterdir() if path.is_dir())
    ['member-0', 'member-1']

    """
    ensemble = ensemble or Ensemble()
    configs = members_of(config, ensemble)
    splits = data_of(config)
    if not splits.train.classes:
        raise ValueError(f"{config.data} is a regression problem: ensembles are of classifiers")
    corrupted_test(config, splits.test)  # raises now, and not after training, if official files do not fit
    save_settings(config, ensemble)
    cores = os.cpu_count() or 1
    count = min(ensemble.processes or cores, ensemble.members)
    processes: Pool[Job, str] = Pool(_work, [{}] * count)
    with processes if ensemble.how == "processes" else nullcontext() as pool:
        runs = []
        for epoch in [*exchanges(configs[0]), None]:
            if pool is None:
                runs = [_train_member(member, epoch, progress) for member in configs]
            else:
                _in_processes(pool, [(member, epoch, max(1, cores // count)) for member in configs])
                runs = [open_run(folder_of(member), config.model) for member in configs]
            if epoch is not None:
                exchange(configs, ensemble, epoch)
    return Trained(folder_of(config, ensemble.strategy), config, ensemble, runs)


def _train_member(config: Config, until: int | None, progress: bool | None) -> Run:
    """Train a member to the end of its run, or to the end of an epoch and write its scores."""
    run = train(config, progress, until)
    if until is not None:
        write_scores(run, until)
    return run


def _in_processes(pool: Pool[Job, str], jobs: Sequence[Job]) -> None:
    """Train several members at once, and try those again whose process dies."""
    waiting, errors = deque(jobs), []
    deaths: dict[Path, tuple[Position, int]] = {}  # how far a run was when its process last died, and how often there
    with stop_signals() as stop_request:
        for job, answer in pool.results(waiting, lambda: stop_request.why):
            if not isinstance(answer, Lost):
                errors += [answer] if answer else []
                continue
            path = folder_of(job[0])
            position = _position(path)
            before, times = deaths.get(path, (position, 0))
            deaths[path] = position, times + 1 if position == before else 1
            if deaths[path][1] < TRIES:
                waiting.append(job)
            else:
                errors.append(f"{path}: {answer}, {TRIES} times at the same position")
        if stop_request.why:
            pool.end()
            paths = [folder_of(config) for config, *_ in jobs]
            raise Stopped(paths[0].parent, min(map(_position, paths)), stop_request.why)
    if errors:
        raise RuntimeError("; ".join(errors) + ". The progress of the other members is kept.")


def _work(job: Job) -> str:
    """Train a member in a worker; return its error, empty if there is none."""
    import torch

    config, until, threads = job
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    keep_loaded()
    try:
        _train_member(config, until, progress=False)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _position(path: Path) -> Position:
    """Return the position of a member's run, started or not."""
    return open_run(path).position if (path / RUN).exists() else Position()
