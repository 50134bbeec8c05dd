"""A process that is killed with SIGKILL, at any moment, again and again, ends as if nobody had."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from training_runs import assert_same_end, config

from steppe.training import Config, open_run
from steppe.training.checkpoint import PREVIOUS, WEIGHTS
from steppe.training.stopping import stop_signals

KILLS = 12
EPOCHS = 25


class ForkServer:
    """Trains in processes of its own; see training_processes.py."""

    def __init__(self) -> None:
        here = Path(__file__).parents[1]
        command = [sys.executable, "-W", "error", str(here / "training_processes.py")]
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self._answer() == "ready\n"

    def train(
        self, settings: Config, after: float | None = None, call: int | None = None, lean: bool = False
    ) -> dict[str, Any]:
        assert self.process.stdin is not None
        request = {"config": asdict(settings), "after": after, "call": call, "lean": lean}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer())
        assert answer["ended"] != "failed"
        return answer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    with server.process:
        yield server
        assert server.process.stdin is not None
        server.process.stdin.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: these tests wait for a disk thousands of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as found:
        yield Path(found)


RUNS: list[dict[str, Any]] = [
    {"method": "looksam", "method_options": {"k": 3}, "ema": 0.9, "swa": 0.3},
    {"method": "sa-sam"},
    {"method": "sharpbalance", "optimizer": "adamw", "lr": 0.01},
]


@pytest.mark.slow
def test_kills_at_random_moments(server: ForkServer, folder: Path) -> None:
    moments = random.Random(0)
    kills = in_the_middle = 0
    wholes: dict[str, tuple[Config, float]] = {}
    for number, changes in zip(count(), cycle(RUNS), strict=False):
        if kills >= KILLS:
            break
        if changes["method"] not in wholes:
            settings = config(folder / f"whole-{number}", epochs=EPOCHS, checkpoint_every=0.02, **changes)
            wholes[changes["method"]] = settings, server.train(settings)["seconds"]
        settings, seconds = wholes[changes["method"]]
        whole, settings = open_run(str(settings.out)), replace(settings, out=str(folder / f"killed-{number}"))
        mine = 0
        while server.train(settings, after=moments.uniform(0, seconds / 3) if mine < 6 else None)["ended"] == "killed":
            mine += 1
        kills += mine
        run = open_run(str(settings.out))
        in_the_middle += sum(start["at"] != "epoch 1, step 0" for start in run.about["starts"])
        assert_same_end(run, whole)
        assert len(run.records) == EPOCHS
    assert in_the_middle >= KILLS // 4  # the kills were not all before the first checkpoint


def test_a_kill_at_every_system_call_that_writes(server: ForkServer, folder: Path) -> None:
    """The k-th start of a run dies at its k-th call: in locks, run.yaml, records, both files of a checkpoint."""
    settings = config(folder / "whole", epochs=2, checkpoint_every=0.0, method="ssam-d", ema=0.9)
    server.train(settings)
    whole, settings = open_run(str(settings.out)), replace(settings, out=str(folder / "killed"))
    left_behind: set[str] = set()
    for call in count(1):
        if server.train(settings, call=call)["ended"] == "finished":
            break
        names = {p.name for p in (folder / "killed").iterdir()}
        left_behind |= {n[1:].rsplit(".", 2)[0] for n in names if n.endswith(".tmp")}  # .NAME.PROCESS.tmp
        left_behind |= {"three states"} if sum(n.startswith("state-") for n in names) > 2 else set()
    assert call > 20
    assert {"three states", WEIGHTS, PREVIOUS, "run.yaml"} <= left_behind  # it died where it hurts
    assert_same_end(open_run(str(settings.out)), whole)
    assert not list((folder / "killed").glob("*.tmp"))
    assert len(list((folder / "killed").glob("state-*"))) == 2


@pytest.mark.slow
def test_a_kill_at_every_system_call_of_a_run_that_keeps_weights_alone(server: ForkServer, folder: Path) -> None:
    """Each start dies at its k-th call in a folder of its own, and the next one goes on: also after the last epoch."""
    settings = config(folder / "whole", epochs=3, checkpoint_every=3600.0)
    server.train(settings)
    whole = open_run(str(settings.out))
    left_behind: set[str] = set()
    for call in count(1):
        path = folder / f"killed-{call}"
        if server.train(replace(settings, out=str(path)), call=call, lean=True)["ended"] == "finished":
            break
        ended = (path / "run.yaml").exists() and open_run(path).finished
        left_behind |= {p.name for p in path.iterdir()} if ended else set()
        assert server.train(replace(settings, out=str(path)), lean=True)["ended"] == "finished"
        assert_same_end(open_run(path), whole)
        assert {p.name for p in path.iterdir()} == {WEIGHTS, "metrics.jsonl", "run.yaml"}
    assert call > 30
    assert {"run.lock", PREVIOUS, "state-2-0.safetensors"} <= left_behind


@pytest.mark.slow
def test_a_kill_at_every_system_call_of_a_run_with_few_checkpoints(server: ForkServer, folder: Path) -> None:
    """Its epochs are short: records are written in between, and are replaced when they are repeated."""
    settings = config(folder / "whole", epochs=6, method="looksam", method_options={"k": 3})
    server.train(settings)
    whole, settings = open_run(str(settings.out)), replace(settings, out=str(folder / "killed"))
    between = 0
    for call in count(1):
        if server.train(settings, call=call)["ended"] == "finished":
            break
        records = folder / "killed/metrics.jsonl"
        lines = records.read_bytes().count(b"\n") if records.exists() else 0
        kept = len(open_run(str(settings.out)).records) if (folder / "killed/run.yaml").exists() else 0
        assert kept <= lines <= 6
        between += lines > kept + 1
    assert between > 2
    assert_same_end(open_run(str(settings.out)), whole)
    assert len(records.read_bytes().splitlines()) == 6


@pytest.mark.slow
def test_a_kill_at_every_system_call_of_a_run_that_is_made_longer(server: ForkServer, folder: Path) -> None:
    """The finished run goes back to the checkpoint before its end first: killed there, it is shorter, but whole."""
    changes = {"schedule": "constant", "measures": ["loss"], "ema": 0.9}
    settings = config(folder / "whole", epochs=4, **changes)
    server.train(settings)
    whole, settings = open_run(str(settings.out)), replace(settings, out=str(folder / "killed"))
    server.train(replace(settings, epochs=2))
    for call in count(1):
        if server.train(settings, call=call)["ended"] == "finished":
            break
        assert [r["epoch"] for r in open_run(str(settings.out)).records] in ([1], [1, 2], [1, 2, 3])
    assert call > 8
    assert_same_end(open_run(str(settings.out)), whole)


def test_a_signal_in_the_last_step_of_a_run_inside_a_study_reaches_the_study() -> None:
    """The run asks before its steps; after the last one, nobody would see the request."""
    with stop_signals() as study:
        with stop_signals() as run:
            signal.raise_signal(signal.SIGTERM)
        assert run.why == "SIGTERM"
    assert study.why == "SIGTERM"
