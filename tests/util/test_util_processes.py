"""The pool of processes: results, lost workers, jobs that are added, and how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from steppe._util.processes import Lost, Pool


def job(what: tuple[str, Any]) -> Any:
    match what:
        case ["double", number]:
            return 2 * number
        case ["variable", name]:
            return os.environ.get(name), os.getpid()
        case ["die", mark]:
            if mark is None or not Path(mark).exists():
                if mark is not None:
                    Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return "alive"
        case ["lock", _]:
            return Lock()  # which cannot be pickled
        case ["raise", text]:
            raise OSError(text)
        case ["sleep", mark]:
            signal.signal(signal.SIGTERM, lambda *_: Path(mark, "stopped").touch())  # as a run that writes a checkpoint
            Path(mark, "begun").touch()
            while not Path(mark, "stopped").exists():
                time.sleep(0.01)
            return "stopped"
    return None


def never() -> bool:
    return False


def test_jobs_are_computed_and_others_may_be_added(tmp_path: Path) -> None:
    jobs: deque[tuple[str, Any]] = deque([("double", 1), ("die", str(tmp_path / "mark")), ("double", 3)])
    found: dict[tuple[str, Any], Any] = {}
    with Pool(job, [{}, {}]) as pool:
        for one, result in pool.results(jobs, never):
            if isinstance(result, Lost):
                assert str(result) == "its worker ended with exit code -9"
                jobs.append(one)
            else:
                found[one] = result
    assert found == {("double", 1): 2, ("double", 3): 6, ("die", str(tmp_path / "mark")): "alive"}


def test_workers_have_their_own_variables_and_stay(tmp_path: Path) -> None:
    with Pool(job, [{"STEPPE_TEST": "a"}]) as pool:
        answers = [a for _ in range(2) for _, a in pool.results(deque([("variable", "STEPPE_TEST")]), never)]
    assert answers[0] == answers[1]
    assert answers[0][0] == "a"
    assert answers[0][1] != os.getpid()


def test_errors_and_results_that_cannot_travel_cost_one_job() -> None:
    jobs: deque[tuple[str, Any]] = deque([("lock", 0), ("raise", "full"), ("double", 1)])
    with Pool(job, [{}]) as pool:
        answers = [answer for _, answer in pool.results(jobs, never)]
    assert "could not be sent" in str(answers[0])
    assert str(answers[1]) == "OSError: full"
    assert answers[2] == 2


def test_the_end_asks_those_that_work_and_waits(tmp_path: Path) -> None:
    with Pool(job, [{}]) as pool:
        for _ in pool.results(deque([("sleep", str(tmp_path))]), (tmp_path / "begun").exists):
            pytest.fail("it has no result yet")
        [(process, _)] = pool._workers.values()
    assert (tmp_path / "stopped").exists()
    assert process.exitcode == 0
