"""One process a folder and one run at a time in a process, whatever happens to the files that say so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import assert_same_end, config

from steppe._util.files import atomic_write
from steppe.training import Run, checkpoint, loop, open_run, train
from steppe.training.checkpoint import PREVIOUS, WEIGHTS

HOLD = """
import sys, time
from pathlib import Path
from steppe.training.folder import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held(path: Path) -> Iterator[int]:
    """A folder that another process has, and the number of that process."""
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other:
        try:
            assert other.stdout.readline() == "held\n"
            yield other.pid
        finally:
            other.kill()


@pytest.mark.skipif(os.name != "posix", reason="folders are locked there")
def test_a_folder_is_held_also_when_its_lock_is_deleted(tmp_path: Path) -> None:
    with held(tmp_path) as pid:
        for lost, who in ((["run.lock"], f"process {pid}"), (["run.lock", "run.holder"], "another process")):
            for name in lost:
                (tmp_path / name).unlink(missing_ok=True)
            with pytest.raises(RuntimeError, match=f"being trained in by {who}"):
                train(config(tmp_path))
    train(config(tmp_path, epochs=1))


def test_a_run_whose_folder_was_replaced_does_not_write_into_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = loop.Training._begin_step

    def replaced(self: loop.Training) -> int:
        if self.timeline.taken(self.position) == 7:
            (tmp_path / "run").rename(tmp_path / "moved")
            (tmp_path / "run").mkdir()
        return taken(self)

    monkeypatch.setattr(loop.Training, "_begin_step", replaced)
    with pytest.raises(RuntimeError, match="replaced by another folder"):
        train(config(tmp_path / "run"))
    assert list((tmp_path / "run").iterdir()) == []


# Symbolic links


@pytest.mark.parametrize(
    "name",
    ["run.yaml", "metrics.jsonl", WEIGHTS, PREVIOUS, "run.holder", "metrics.csv", "run.lock", "state-2-0.safetensors"],
)
def test_no_write_follows_a_symbolic_link(name: str, tmp_path: Path) -> None:
    settings = config(tmp_path / "run", epochs=3, loggers=["csv"])
    train(settings, until=2)
    path, outside = tmp_path / "run" / name, tmp_path / "outside"
    outside.write_bytes(path.read_bytes() if path.exists() else b"years of work")
    before = outside.read_bytes()
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    trouble = ""
    try:
        train(settings)
    except OSError as error:
        trouble = str(error)
    assert not trouble or (name in trouble and "symbolic link" in trouble)
    assert outside.read_bytes() == before


def test_tensorboard_does_not_follow_one(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "events.out.tfevents.1").write_bytes(b"years of work")
    settings = config(tmp_path / "run", loggers=["tensorboard"])
    train(replace(settings, loggers=[]), until=1)
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"symbolic link.*tensorboard"):
        train(settings)
    assert [p.name for p in (tmp_path / "outside").iterdir()] == ["events.out.tfevents.1"]


def test_a_draft_does_not_follow_one(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("years of work")
    (tmp_path / f".page.html.{os.getpid()}.tmp").symlink_to(outside)
    with atomic_write(tmp_path / "page.html") as file:
        file.write(b"a page")
    assert outside.read_text() == "years of work"
    assert (tmp_path / "page.html").read_text() == "a page"


# Reading while a run is trained


def test_averages_are_read_while_training_writes_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is looked at, and by the time that its state is wanted two others have come."""
    settings = config(tmp_path, epochs=4, ema=0.9)
    train(settings, until=1)
    look, looks = checkpoint.read_header, 0

    def slow(folder: Path, name: str = WEIGHTS) -> Any:
        nonlocal looks
        found, looks = look(folder, name), looks + 1
        if looks == 1:
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint, "read_header", look)
                train(settings)
        return found

    run = open_run(tmp_path)
    monkeypatch.setattr(checkpoint, "read_header", slow)
    found = run.weights("ema")
    monkeypatch.undo()
    assert looks > 1
    assert all(torch.equal(found[k], t) for k, t in open_run(tmp_path).weights("ema").items())


# What changes a run's bits


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_a_run_goes_on_with_as_many_threads_as_it_began_with_and_says_so(threads: int, tmp_path: Path) -> None:
    settings = config(tmp_path)
    train(settings, until=1)
    torch.set_num_threads(threads + 2)
    with pytest.warns(UserWarning, match=rf"with {threads} threads? of torch.*this process has {threads + 2}"):
        run = train(settings)
    assert [start["threads"] for start in run.about["starts"]] == [threads, threads]
    assert torch.get_num_threads() == threads + 2


FACTORY = """
from torch import nn

def made(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.{}(), nn.Linear(8, outputs))
"""


def test_a_changed_factory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_factory.py"
    file.write_text(FACTORY.format("Tanh"))
    settings = config(tmp_path / "run", model="own_factory:made", epochs=3)
    train(settings, until=1)
    train(settings, until=2)  # says nothing
    file.write_text(FACTORY.format("ReLU"))
    sys.modules.pop("own_factory")
    with pytest.warns(UserWarning, match=r"own_factory:made.* has changed.*.py had the digest \w+ and .* has \w+"):
        train(settings)
    sys.modules.pop("own_factory")


def test_weights_of_another_shape_are_not_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """copy_ would take one number for all of a row."""
    settings = config(tmp_path, model="training_runs:plain")
    train(settings, until=1)
    done = checkpoint.load(tmp_path)
    assert done is not None
    weights = {k: t[:1] if k == "1.bias" else t for k, t in done.weights.items()}
    monkeypatch.setattr(checkpoint, "load", lambda *_: replace(done, weights=weights))
    with pytest.raises(ValueError, match=r"1.bias has the shape \(1,\) in the checkpoint and \(8,\) in the model"):
        train(settings)


# Several threads


def test_runs_in_several_threads_are_what_they_are_alone(tmp_path: Path) -> None:
    alone = [train(config(tmp_path / f"alone-{seed}", epochs=4, seed=seed)) for seed in range(3)]
    found: dict[int, Run] = {}

    def one(seed: int) -> None:
        found[seed] = train(config(tmp_path / f"together-{seed}", epochs=4, seed=seed))

    workers = [threading.Thread(target=one, args=[seed]) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for seed, run in enumerate(alone):
        assert_same_end(found[seed], run)
