"""What a reader has to go through: the files of steppe that one task enters, and how often it changes between them.

The tasks are those of a user. Each limit has room above what was counted when it was set. A limit
that is passed says that a task takes another way than before: shorten the way, or raise the limit and say why.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import cross_entropy

import steppe
import steppe.training.folder
from steppe.cli import main
from steppe.data import Source
from steppe.measures import WorstCase
from steppe.training import Config

ROOT = f"{Path(steppe.__file__).parent}/"
SMALL = {"data": "spirals", "fraction": 0.1, "model": "mlp", "model_options": {"width": 8, "depth": 1}}
SMALL |= {"epochs": 1, "batch_size": 50, "device": "cpu"}


def walk(task: Callable[[], object]) -> list[str]:
    """The file, below steppe's folder, of every Python call that a task makes there, in their order.

    A generator that goes on is a call. Threads and processes that the task starts are not seen.
    """
    files: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            files.append(frame.f_code.co_filename.removeprefix(ROOT))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        task()
    finally:
        sys.setprofile(before)
    return files


def check_walk(task: Callable[[], object], files: int, changes: int) -> None:
    """The task enters at most so many files, and changes between them at most so often; its first run is warm-up."""
    task()  # imports, and what is made once
    entered = walk(task)
    changed = sum(a != b for a, b in pairwise(["", *entered]))  # from the caller's file to the first one, too
    found = f"{len(set(entered))} files and {changed} changes of file: {', '.join(dict.fromkeys(entered))}"
    assert len(set(entered)) <= files, found
    assert changed <= changes, found
    assert entered, "nothing of steppe was called"


def test_a_walk_is_counted() -> None:
    """By a call whose way is known: a property of one file, and a vector that asks its space, in another."""
    space = steppe.Space([torch.ones(2)])
    assert set(walk(lambda: space.weights().norm())) == {"core/vector.py"}
    assert walk(lambda: torch.ones(2).norm()) == []


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    return model, torch.randn(16, 8), torch.randint(0, 3, (16,))


def test_step_of_sam_by_a_closure() -> None:
    model, x, y = problem()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = steppe.SharpnessAware(base, steppe.SAM(rho=0.05), model=model)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    check_walk(lambda: opt.step(closure), files=9, changes=40)  # with Accelerate imported one file and two more


def test_measuring_a_loss() -> None:
    model, x, y = problem()
    check_walk(lambda: steppe.measure(model, cross_entropy, (x, y), "loss", progress=False), files=19, changes=91)


def arguments(settings: dict[str, object]) -> list[str]:
    return [word for k, v in settings.items() for word in (f"--{k.replace('_', '-')}", str(v))]


def fresh(place: Path, words: Callable[[Path], list[str]]) -> Callable[[], None]:
    """A command, each time in another folder."""

    def task() -> None:
        place.mkdir(exist_ok=True)
        assert main(words(place / str(len(list(place.iterdir()))))) == 0

    return task


def test_training_for_an_epoch(tmp_path: Path) -> None:
    check_walk(fresh(tmp_path, lambda out: ["train", *arguments(SMALL), "--out", str(out)]), files=65, changes=460)


def test_study_of_two_cells_to_the_page(tmp_path: Path) -> None:
    def words(out: Path) -> list[str]:
        out.mkdir()
        study = {"base": SMALL, "grid": {"method": ["none", "sam"]}, "measures": ["loss"], "engine": "serial"}
        (out / "study.yaml").write_text(yaml.safe_dump(study | {"out": str(out / "here")}))
        return ["study", "run", str(out / "study.yaml")]

    check_walk(fresh(tmp_path, words), files=120, changes=3000)


def test_ensemble_of_two_members(tmp_path: Path) -> None:
    settings = SMALL | {"strategy": "sharpbalance", "members": 2, "epochs": 2}
    check_walk(
        fresh(tmp_path, lambda out: ["ensemble", *arguments(settings), "--out", str(out)]), files=90, changes=3300
    )


def test_each_file_is_opened_once_and_each_value_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One configuration, one reading of the data and of a run's folder, and nothing that nobody asked for."""
    made: Counter[str] = Counter()

    def count(kind: type, name: str, what: str) -> None:
        whole = getattr(kind, name)

        def counted(*given: Any, **more: Any) -> Any:
            made[what] += 1
            return whole(*given, **more)

        monkeypatch.setattr(kind, name, counted)

    count(Config, "__post_init__", "configurations")
    count(Source, "__call__", "readings of data")
    count(WorstCase, "running", "ascents")
    monkeypatch.setattr(steppe.training.folder, "read_run_yaml", counting(made, steppe.training.folder.read_run_yaml))

    def found(*words: str) -> dict[str, int]:
        made.clear()
        assert main([*words]) == 0
        return dict(made)

    run = str(tmp_path / "run")
    assert found("train", *arguments(SMALL), "--out", run) == {"configurations": 1, "readings of data": 1}
    once = {"configurations": 1, "readings of data": 1, "run.yaml": 1}
    assert found("measure", run, "--measures", "loss") == once
    assert found("landscape", run, "--axes", "1", "--points", "3", "--out", str(tmp_path / "line.json")) == once
    settings = SMALL | {"strategy": "sharpbalance", "members": 2, "epochs": 2}
    ensemble = found("ensemble", *arguments(settings), "--out", str(tmp_path / "ensemble"))
    assert ensemble["readings of data"] == 1
    assert "ascents" not in ensemble


def counting(made: Counter[str], whole: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A function that notes that run.yaml is read."""

    def read(path: Path) -> Any:
        made["run.yaml"] += 1
        return whole(path)

    return read
