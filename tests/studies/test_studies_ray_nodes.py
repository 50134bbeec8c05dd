"""A Ray cluster of several nodes that loses one in the middle of a study: no cell is lost, and none runs twice."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
import yaml
from studies_cells import BASE, contents, descendants, tiny
from test_studies_ray import TOKEN

from steppe.studies.cell import Outcome, Task
from steppe.studies.engines import Ray, Serial
from steppe.studies.engines.engine import Begun
from steppe.studies.engines.ray import LOOPBACK, QUIET
from steppe.studies.run import run
from steppe.training.stopping import StopRequest

PATIENCE = 240.0  # seconds: each of three workers imports torch first, on a machine that may be busy
CELLS = 12
LONG = {**BASE, "epochs": 60, "checkpoint_every": 0.0}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray"),
]


@contextmanager
def nodes() -> Iterator[tuple[str, int]]:
    """A cluster of a head without cores, a node of one and a node of two: its address, and the last one's raylet."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as files:
        patch.setenv("RAY_TMPDIR", files)  # short: its sockets are there, whose paths may have 107 characters
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in {**LOOPBACK, **QUIET}.items():  # Ray reads them when it is imported
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        here = {"node_ip_address": "127.0.0.1"}
        try:
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **here})
        except Exception as error:  # a machine's matter, such as shared memory that is closed to us
            pytest.skip(f"Ray does not start on this machine: {error}")
        try:
            cluster.add_node(num_cpus=1, **here)
            [raylet] = cluster.add_node(num_cpus=2, **here).all_processes["raylet"]
            yield cluster.address, raylet.process.pid
        finally:
            cluster.shutdown()


class Told:
    """An engine that counts how often each cell begins."""

    def __init__(self, engine: Ray) -> None:
        self.engine, self.workers, self.slowdown, self.remote = engine, 3, 1.0, True
        self.begun: Counter[str] = Counter()

    def outcomes(self, tasks: Sequence[Task], stop_request: StopRequest, begun: Begun) -> Iterator[Outcome]:
        def told(task: Task) -> None:
            self.begun[task.cell.key] += 1
            begun(task)

        yield from self.engine.outcomes(tasks, stop_request, told)


def held_by(runs: Path) -> dict[int, str]:
    """The key of the run that each process has, among those that have trained for some epochs."""
    held = {}
    for holder in runs.glob("*/run.holder"):
        with suppress(OSError, IndexError):
            if (holder.parent / "metrics.jsonl").read_text().count("\n") >= 3:
                held[int(holder.read_text().split()[1])] = holder.parent.name
    return held


def lose(raylet: int, runs: Path, lost: list[str]) -> None:
    """Kill a node and one of its two workers while both train; the other worker is left to find out."""
    end = monotonic() + PATIENCE
    while monotonic() < end:
        workers = {pid for pid, _ in descendants(raylet)}
        training = {pid: key for pid, key in held_by(runs).items() if pid in workers}
        if len(training) == 2 and len(list(runs.iterdir())) > 4:  # some cells are done
            left, *killed = training
            os.kill(raylet, signal.SIGKILL)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            lost += [training[pid] for pid in (*killed, left)]
            return
        sleep(0.01)


def test_a_lost_node_costs_no_cell_and_repeats_none(tmp_path: Path, capfd: Any) -> None:
    grid = {"method": ["none", {"method": "sam", "rho": 0.1}], "seed": list(range(CELLS // 2))}
    alone, study = (tiny(tmp_path / name, base=LONG, grid=grid) for name in ("serial", "nodes"))
    lost: list[str] = []
    runs = tmp_path / "nodes" / "runs"
    with nodes() as (address, raylet):
        engine = Told(Ray(address))
        killer = Thread(target=lose, args=(raylet, runs, lost))
        killer.start()
        found = run(study, engine)
        killer.join()
    assert capfd.readouterr() == ("", "")  # Ray tells pages of a lost node
    assert len(lost) == 2
    assert (found.done, dict(found.failures), found.stopped) == (CELLS, {}, "")
    killed, left = lost
    again = engine.begun.pop(left)  # Ray ends its worker, or the worker ends its run before
    starts = {f.name: [s["at"] for s in yaml.safe_load((f / "run.yaml").read_text())["starts"]] for f in runs.iterdir()}
    assert len(starts.pop(left)) == again
    assert again in (1, 2)
    # the cell of a killed worker begins again, and nothing else does
    assert engine.begun == {key: 1 + (key == killed) for key in starts}
    assert engine.begun == {key: len(at) for key, at in starts.items()}
    assert starts[killed][1] != starts[killed][0]  # from its checkpoint
    assert run(alone, Serial()).done == CELLS
    assert contents(study) == contents(alone)
