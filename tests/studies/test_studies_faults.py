"""Workers and drivers that are killed with SIGKILL, at any moment, again and again: the store ends as if nobody had."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from studies_cells import contents, descendants
from studies_processes import SEEDS, study
from tiers import slow_unless

from steppe.studies.store import Store

WORKERS, DRIVERS = 4, 2  # kills
PATIENCE = 240.0  # seconds for a study: machines that test may be busy
ENDING = 60.0  # seconds for workers to end: they give themselves ten, and longer where they wait for a core

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")


def started(*words: str, **pipes: Any) -> subprocess.Popen[str]:
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, str(here / "studies_processes.py"), *words], text=True, env=env, **pipes)


class ForkServer:
    """Runs studies without workers in forked children."""

    def __init__(self) -> None:
        self.process = started("fork", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._answer() == "ready\n"

    def run(self, out: Path, after: float | None = None) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"out": str(out), "after": after}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer())
        assert answer["ended"] != "failed"
        return answer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where that is possible: these tests wait for a disk thousands of times."""
    memory = Path("/dev/shm")
    usual = tmp_path_factory.mktemp("faults")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else usual) as found:
        yield Path(found)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    with server.process:
        yield server
        assert server.process.stdin is not None
        server.process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(server: ForkServer, folder: Path) -> tuple[dict[str, Any], float]:
    answer = server.run(folder / "whole")
    found = contents(study(folder / "whole"))
    assert sum(isinstance(run, dict) and run["state"] == "done" for run in found.values()) == 2 * SEEDS
    return found, answer["seconds"]


@pytest.mark.parametrize("least", slow_unless((3).__eq__, [3, 6]))  # kills
def test_drivers_that_are_killed(
    server: ForkServer, folder: Path, undisturbed: tuple[dict[str, Any], float], least: int
) -> None:
    whole, seconds = undisturbed
    moments, kills, partly = random.Random(1), 0, 0
    for number in range(5 * least):  # as often as it takes: how fast the machine is differs from start to start
        out, fresh = folder / f"driver-{least}-{number}", True
        while kills < least or not partly:
            most = seconds * max(1, kills / least)  # later, where all kills so far were before the first record
            answer = server.run(out, after=moments.uniform(0, most))
            if answer["ended"] != "killed":
                seconds = answer["seconds"] if fresh else seconds  # other work may have slowed the first measurement
                break
            kills, fresh = kills + 1, False
            if study(out).store.exists():
                with Store.reading(study(out).store) as store:
                    partly += list(store.states().values()).count("done") not in (0, 2 * SEEDS)
        server.run(out)
        assert contents(study(out)) == whole
        if kills >= least and partly:
            break
    assert kills >= least
    assert partly  # not all kills were before the first record


@pytest.mark.slow
def test_workers_and_drivers_that_are_killed(folder: Path, undisturbed: tuple[dict[str, Any], float]) -> None:
    whole, _ = undisturbed
    moments, out, end = random.Random(2), folder / "workers", time.monotonic() + PATIENCE
    workers = drivers = rounds = 0
    while workers < WORKERS or drivers < DRIVERS:  # a study that ends before all are killed is followed by another
        rounds += 1
        out = folder / f"workers-{rounds}"
        driver = started("local", str(out))
        try:
            while driver.poll() is None:
                assert time.monotonic() < end
                living = _workers(driver.pid)
                if not living or workers + drivers >= WORKERS + DRIVERS:
                    time.sleep(0.05)
                    continue
                time.sleep(moments.uniform(0, 0.4))
                last = (workers + 1) * DRIVERS > (drivers + 1) * WORKERS  # the one and the other in turn
                if last and drivers < DRIVERS:
                    driver.kill()
                    driver.wait()
                    drivers += 1
                    _gone(living)
                    driver = started("local", str(out))
                elif living := _workers(driver.pid):
                    with suppress(ProcessLookupError):  # it may have ended since: then nobody was killed
                        os.kill(moments.choice(living), SIGKILL)
                        workers += 1
            assert driver.returncode == 0
        finally:
            driver.kill()
            driver.wait()
        assert contents(study(out)) == whole
    assert workers + drivers == WORKERS + DRIVERS


@pytest.mark.slow
def test_workers_end_with_their_driver(folder: Path) -> None:
    """Also in the middle of a cell that would take for ever; its run has a checkpoint, and its folder is free."""
    driver, end = started("endless", str(folder / "endless")), time.monotonic() + PATIENCE
    try:
        runs = folder / "endless" / "runs"
        while len(list(runs.glob("*/metrics.jsonl"))) < 2:  # both workers train
            assert time.monotonic() < end
            time.sleep(0.05)
        living = _workers(driver.pid)
    finally:
        driver.kill()
        driver.wait()
    assert len(living) == 2
    _gone(living)


def _workers(driver: int) -> list[int]:
    """The processes that compute cells: the grandchildren, whose parent is the server that forks them."""
    return [pid for pid, command in descendants(driver) if "forkserver" in command and _parent(pid) != driver]


def _parent(pid: int) -> int | None:
    """None for a process that has ended, also if its parent has not asked how: an init of a container may never."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def _gone(pids: list[int]) -> None:
    """Workers end by themselves when their driver is gone."""
    end = time.monotonic() + ENDING
    while any(_parent(pid) is not None for pid in pids):
        assert time.monotonic() < end, "workers outlived their driver"
        time.sleep(0.05)
