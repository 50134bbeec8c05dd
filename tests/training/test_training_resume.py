"""Law: a run that was stopped and started again ends bit for bit as if it had never stopped."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import assert_same_end, config, timeless
from training_stops import crashed, stopped

import steppe
from steppe._util import files
from steppe.training import Run, loop, open_run, train
from steppe.training.checkpoint import WEIGHTS, read_header
from steppe.training.schedule import Position

STEPS = 10  # two epochs of five


# at step 3 of 10, in the middle of the first epoch; by step 7 LookSAM and SSAM-D have been both on and off
@pytest.mark.sampled(8)
@pytest.mark.parametrize("method", sorted(steppe.METHODS))
def test_every_method_goes_on(method: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"looksam": {"k": 2}, "ssam-d": {"every": 3}, "ssam-f": {"every": 3, "samples": 4}}
    model = "training_runs:plain" if method == "ssam-f" else "training_runs:small"  # BatchNorm cannot see one row
    settings = config(
        tmp_path / "whole", method=method, method_options=options.get(method, {}), model=model, ema=0.9, swa=0.3
    )
    whole = train(settings)
    settings = replace(settings, out=str(tmp_path / "parts"))
    for step in (2, 6):
        stopped(settings, step)
    assert_same_end(train(settings), whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adamw", "lr": 0.01, "warmup": 0.3},
        {"optimizer": "adam", "lr": 0.01, "precision": "bf16"},
        {"nesterov": True, "clip": 0.1, "label_smoothing": 0.1, "schedule": "multistep"},
        {"held_out": 0.3, "method": "agnostic-sam", "batch_size": 14},
        {"augment": ["mixup"], "validation": 0.2, "label_noise": 0.2, "batch_size": 16},
        {"data": "teacher-student", "schedule": "linear", "label_smoothing": 0.0, "lr": 0.01},
        {"steps": 8, "epochs": 99, "evaluate_every": 3},
        {"measures": ["lambda_max", "trace"], "measure_rows": 32, "measure_every": 1},
    ],
    ids=lambda c: "-".join(c),
)
def test_every_setting_goes_on(changes: dict[str, Any], tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", **changes))
    settings = config(tmp_path / "parts", **changes)
    for step in (1, 4, 7):
        stopped(settings, step)
    assert_same_end(train(settings), whole)


@cache
def undisturbed(folder: Path) -> Run:
    return train(config(folder, method="sa-sam", ema=0.9))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return undisturbed(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("every", [0.0, 3600.0], ids=["every-step", "every-epoch"])
@pytest.mark.parametrize("step", range(STEPS))
def test_a_crash_in_any_step(step: int, every: float, whole: Run, tmp_path: Path) -> None:
    settings = replace(whole.config, out=str(tmp_path), checkpoint_every=every)
    crashed(settings, step)
    done = read_header(tmp_path)
    reached = done.position.epoch * 5 + done.position.step if done is not None else 0
    assert reached == (step if every == 0 else step // 5 * 5)  # what is kept is what was asked for
    assert_same_end(train(settings), whole)


LOGGED: list[float] = []


class Listed:
    """A logger of a user: it cannot take a record back."""

    def __init__(self, folder: Path) -> None:
        pass

    def log_params(self, params: Any) -> None:
        pass

    def log_metrics(self, step: int, metrics: Any) -> None:
        LOGGED.append(metrics["epoch"])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("step", "kept"), [(2, 0), (7, 1), (17, 1), (22, 1), (27, 5)])
def test_short_epochs_share_a_checkpoint_and_a_crash_repeats_those_after_it(
    step: int, kept: int, tmp_path: Path
) -> None:
    """Six epochs of a few milliseconds: the first, the last but one and the last have a checkpoint of their own."""
    LOGGED.clear()
    changes = {"epochs": 6, "method": "looksam", "method_options": {"k": 3}, "ema": 0.9, "swa": 0.3}
    whole = train(config(tmp_path / "whole", **changes))
    settings = config(tmp_path / "parts", loggers=[f"{__name__}:Listed"], **changes)
    crashed(settings, step)
    file = tmp_path / "parts/metrics.jsonl"
    written = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    assert [r["epoch"] for r in written] == list(range(1, step // 5 + 1))  # a record per epoch, as ever
    done = open_run(tmp_path / "parts")
    assert (done.position, len(done.records)) == (Position(kept), kept)  # those with a checkpoint count
    assert [r["epoch"] for r in done.records] == LOGGED
    run = train(settings)
    assert_same_end(run, whole)
    assert timeless(run.records[: len(written)]) == timeless(written)  # repeated bit for bit
    assert len(file.read_text().splitlines()) == 6
    assert LOGGED == [1, 2, 3, 4, 5, 6]


def test_epochs_that_take_long_have_a_checkpoint_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PAUSE", 0.0)
    settings = config(tmp_path, epochs=6)
    crashed(settings, 17)
    assert open_run(tmp_path).position == Position(3)
    assert len(train(settings).records) == 6


def test_a_signal_between_two_checkpoints_writes_one(tmp_path: Path) -> None:
    settings = config(tmp_path / "parts", epochs=6)
    stopped(settings, 17)
    assert open_run(tmp_path / "parts").position == Position(3, 3)
    assert len(open_run(tmp_path / "parts").records) == 3
    assert_same_end(train(settings), train(config(tmp_path / "whole", epochs=6)))


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_at_the_next_step_and_says_so(by: int, tmp_path: Path) -> None:
    told = stopped(config(tmp_path), 3, by)
    assert told.exit_code == 75
    assert told.position == Position(0, 4) == open_run(tmp_path).position
    assert signal.Signals(by).name in str(told)
    assert str(tmp_path) in str(told)
    assert not open_run(tmp_path).finished
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # handlers are as before


def test_a_signal_in_the_last_step_of_an_epoch_stops_before_evaluation(tmp_path: Path) -> None:
    """Evaluation may take longer than a scheduler waits."""
    told = stopped(config(tmp_path), 4)
    assert told.position == Position(0, 5)
    assert open_run(tmp_path).records == []
    assert len(train(config(tmp_path)).records) == 2


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(self: loop.Training) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    monkeypatch.setattr(loop.Training, "_begin_step", twice)
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path))


def test_a_finished_run_is_returned_as_it_is(whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir() if p.name != "run.lock"}
    monkeypatch.setattr(loop.Training, "_begin_step", lambda *_: pytest.fail("it trains again"))
    again = train(whole.config)
    assert again.finished
    assert again.records == whole.records
    assert {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir() if p.name != "run.lock"} == before


@pytest.mark.parametrize("changes", [{"lr": 0.2}, {"model_options": {"width": 4}}, {"milestones": [0.5]}, {"seed": 1}])
def test_another_configuration_is_refused(changes: dict[str, Any], whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    settings = replace(whole.config, out=str(tmp_path))
    with pytest.raises(ValueError, match="another configuration") as told:
        train(replace(settings, **changes))
    (name,) = changes
    assert f"{name} was {getattr(settings, name)!r} and is now {changes[name]!r}" in str(told.value)


def test_what_does_not_touch_the_result_may_change(tmp_path: Path, whole: Run) -> None:
    settings = replace(whole.config, out=str(tmp_path / "a"))
    stopped(settings, 2)
    (tmp_path / "a").rename(tmp_path / "b")
    settings = replace(settings, out=str(tmp_path / "b"), checkpoint_every=0.0, loggers=["csv"], data_root="elsewhere")
    assert_same_end(train(settings), whole)


def test_other_rows_are_refused(tmp_path: Path) -> None:
    rows = {"x_train": np.random.default_rng(0).normal(size=(40, 3)).astype("float32")}
    rows |= {"y_train": np.arange(40) % 2, "x_test": rows["x_train"], "y_test": np.arange(40) % 2}
    np.savez(tmp_path / "rows.npz", **rows)
    settings = config(tmp_path / "run", data=f"npz:{tmp_path / 'rows.npz'}", fraction=1.0)
    stopped(settings, 1)
    rows["x_train"][0, 0] += 1e-6
    np.savez(tmp_path / "rows.npz", **rows)
    with pytest.raises(ValueError, match="begun on other rows"):
        train(settings)


def test_every_start_is_in_run_yaml(tmp_path: Path) -> None:
    settings = config(tmp_path)
    stopped(settings, 2)
    about = train(settings).about
    assert [s["at"] for s in about["starts"]] == ["epoch 1, step 0", "epoch 1, step 3"]
    start = about["starts"][-1]
    assert start["torch"] == str(torch.__version__)
    assert start["process"] == os.getpid()
    assert about["config"]["seed"] == 0
    assert about["rows"] == {"train": 100, "test": 1000}


# A disk that is full


@pytest.mark.parametrize("number", range(6))
def test_a_full_disk_leaves_the_last_checkpoint(
    number: int, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number-th write after the third step takes half of its bytes and fails."""
    settings = replace(whole.config, out=str(tmp_path), checkpoint_every=0.0)
    stopped(settings, 2)
    writes = iter(range(1000))
    write = os.write

    def half(handle: int, content: Any) -> int:
        if (now := next(writes)) == number + 1:  # run.yaml comes first
            return write(handle, content[: len(content) // 2])
        if now == number + 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", half)
        with pytest.raises(OSError, match="No space left") as told:
            train(settings)
    assert told.value.errno == errno.ENOSPC
    assert "same command" in str(told.value)
    assert str(tmp_path) in str(told.value)
    assert not list(tmp_path.glob("*.tmp"))  # nothing half-written takes the space that is missing
    assert open_run(tmp_path).position >= Position(0, 3)
    assert_same_end(train(settings), whole)


def test_a_limit_on_file_sizes_is_such_a_disk(whole: Run, tmp_path: Path) -> None:
    settings = replace(whole.config, out=str(tmp_path))
    stopped(settings, 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / WEIGHTS).stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # run.yaml fits, the optimizer's state does not
        with pytest.raises(OSError, match="File too large"):
            train(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert open_run(tmp_path).position == Position(0, 3)
    assert_same_end(train(settings), whole)


def test_training_outside_the_main_thread(tmp_path: Path) -> None:
    """Signals are the main thread's; a run in another one does without."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(train(config(tmp_path / "a", epochs=1))))
    thread.start()
    thread.join()
    assert_same_end(found[0], train(config(tmp_path / "b", epochs=1)))


def test_random_numbers_and_threads_are_as_before(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(config(tmp_path, epochs=1, threads=threads + 1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_the_seed_is_all_that_a_run_follows_from(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = train(config(tmp_path / "a"))
    torch.manual_seed(2)
    assert_same_end(train(config(tmp_path / "b")), first)
    other = train(config(tmp_path / "c", seed=1))
    assert timeless(other.records) != timeless(first.records)
