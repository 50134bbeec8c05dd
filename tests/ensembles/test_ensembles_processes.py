"""Members in processes of their own: one that is killed is started again, and none outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout
from training_runs import assert_same_end, config

import steppe
from steppe._util.processes import Lost
from steppe.ensembles import Ensemble, Trained, open_ensemble, train_ensemble
from steppe.ensembles import train as ensemble_training
from steppe.training import Config, Stopped

LONG: dict[str, Any] = {"epochs": 30, "checkpoint_every": 0.01, "model": "training_runs:plain", "threads": 1}
SETTINGS: dict[str, Any] = {"members": 2, "exchange_at": 15}


def settings(out: Path, **changes: Any) -> Config:
    return config(out, **(LONG | changes))


def holder(member: Path) -> int | None:
    """The process that trains in a folder."""
    try:
        return int((member / "run.holder").read_text().split()[1])
    except (FileNotFoundError, IndexError):
        return None


def once_training(member: Path, act: Any) -> threading.Thread:
    """Does something to the process that trains a member, as soon as it has written a checkpoint."""

    def watch() -> None:
        for _ in range(20_000):
            if (member / "checkpoint.safetensors").exists() and (pid := holder(member)) is not None:
                act(pid)
                return
            time.sleep(0.003)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def assert_same_members(a: Trained, b: Trained) -> None:
    for mine, theirs in zip(a.runs, b.runs, strict=True):
        assert_same_end(mine, theirs)


def in_memory() -> Any:
    """In memory where that is possible: these tests wait for a disk thousands of times."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as found:
        yield Path(found) / "ensemble"


@pytest.fixture(scope="module")
def straight() -> Iterator[Trained]:
    with in_memory() as found:
        yield train_ensemble(settings(Path(found)), Ensemble(**SETTINGS))


@pytest.mark.slow
def test_a_process_that_is_killed_costs_only_its_members_unfinished_part(straight: Trained, folder: Path) -> None:
    """Bitwise as in sequence: threads are one here and there."""
    killer = once_training(folder / "member-1", lambda pid: os.kill(pid, signal.SIGKILL))
    found = train_ensemble(settings(folder), Ensemble(**SETTINGS, how="processes", processes=2))
    killer.join()
    assert_same_members(found, straight)
    first, second = (run.about["starts"] for run in found.runs)
    mine = {start["process"] for start in first} | {start["process"] for start in second}
    assert os.getpid() not in mine
    assert len(second) == len(first) + 1 == 3  # two parts of the run, and one more start
    assert second[1]["at"] != "epoch 1, step 0"


class Scripted:
    """A pool that starts no process: its jobs have the next answers, None for a process that dies."""

    def __init__(self, answers: list[str | None]):
        self._answers = answers

    def results(self, jobs: Any, stop: Any) -> Iterator[tuple[Any, str | Lost]]:
        while jobs:
            answer = self._answers.pop(0)
            yield jobs.popleft(), Lost("its worker ended with exit code -9") if answer is None else answer


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["", ""], None),
        ([None, "", None, ""], None),
        (["too steep", ""], "too steep. The progress of the other members is kept"),
        ([None, "", None, None], "exit code -9, 3 times at the same position"),
    ],
)
def test_members_are_restarted_and_errors_raised_at_the_end(
    answers: list[str | None], said: str | None, tmp_path: Path
) -> None:
    pool: Any = Scripted(answers := list(answers))
    jobs = [(settings(tmp_path / f"member-{i}"), None, 1) for i in range(2)]
    with pytest.raises(RuntimeError, match=said) if said else nullcontext():
        ensemble_training._in_processes(pool, jobs)
    assert not answers


def test_a_signal_stops_all_and_the_same_call_goes_on(straight: Trained, folder: Path) -> None:
    ensemble = Ensemble(**SETTINGS, how="processes", processes=1)
    sender = once_training(folder / "member-0", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped by SIGTERM") as told:
        train_ensemble(settings(folder), ensemble)
    sender.join()
    assert told.value.path == folder
    assert_free(folder)
    assert_same_members(train_ensemble(settings(folder), Ensemble(**SETTINGS)), straight)


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(straight: Trained, folder: Path) -> None:
    code = (
        "from steppe.ensembles import Ensemble, train_ensemble; from steppe.training import Config\n"
        f"if __name__ == '__main__': train_ensemble(Config(**{asdict(settings(folder))!r}), "
        f"Ensemble(**{SETTINGS!r}, how='processes', processes=1))"
    )
    script = folder.with_suffix(".py")
    script.write_text(code)
    paths = [Path(__file__).parents[1], Path(steppe.__file__).parents[1]]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    with subprocess.Popen([sys.executable, str(script)], env=env) as first:
        once_training(folder / "member-0", lambda _: first.kill()).join()
    assert first.returncode == -signal.SIGKILL  # and not an error of its own
    assert_free(folder)
    assert not open_ensemble_finished(folder)
    assert_same_members(train_ensemble(settings(folder), Ensemble(**SETTINGS)), straight)


def open_ensemble_finished(path: Path) -> bool:
    members = [path / f"member-{i}" for i in range(2)]
    return all((m / "run.yaml").exists() for m in members) and all(r.finished for r in open_ensemble(path).runs)


def assert_free(path: Path) -> None:
    """Nobody trains in a folder any more, within a moment."""
    for lock in path.glob("member-*/run.lock"):
        try:
            with FileLock(lock, timeout=20):
                pass
        except Timeout:
            pytest.fail(f"{lock} is still held")
