"""The layer below a run: files that are whole or not there, state without pickle, one process a folder."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from training_runs import config
from training_stops import crashed, stopped

import steppe
from steppe._util import files
from steppe._util.digests import with_digests
from steppe.training import Config, checkpoint, open_run, train
from steppe.training.checkpoint import (
    PREVIOUS,
    WEIGHTS,
    Header,
    RecordsPrefix,
    append_record,
    commit,
    pack,
    read_header,
    read_records,
    read_state,
    read_weights,
    unpack,
)
from steppe.training.folder import claimed
from steppe.training.loggers import numbers
from steppe.training.schedule import Position, Timeline

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
tensors = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8]).flatmap(
    lambda d: st.sampled_from([(), (0,), (3,), (2, 3)]).map(lambda s: (torch.rand(s) * 9).to(d))
)
trees = st.recursive(
    scalars | tensors,
    lambda x: (
        st.lists(x, max_size=3)
        | st.lists(x, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), x, max_size=3)
    ),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


@given(trees)
def test_what_is_packed_comes_back(tree: Any) -> None:
    assert same(unpack(*pack(tree)), tree)


def test_memory_order_and_numbers_that_json_has_not_come_back() -> None:
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tree = {"x": images, "inf": math.inf, "small": 5e-324}
    back = unpack(*pack(tree))
    assert back["x"].is_contiguous(memory_format=torch.channels_last)
    assert same(back, tree)
    assert math.isnan(unpack(*pack(math.nan)))


def test_a_thing_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(TypeError, match=r"/a/0 is a object"):
        pack({"a": [object()]})
    with pytest.raises(TypeError, match="key of type float"):
        pack({0.5: 1})


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.replace(path, b"old")
    seen = []
    move = os.replace

    def looking(a: Any, b: Any) -> None:
        seen.append(path.read_bytes())
        move(a, b)

    monkeypatch.setattr(files.os, "replace", looking)
    files.replace(path, b"new")
    assert (seen, path.read_bytes()) == ([b"old"], b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_content_of_a_failed_write_can_be_closed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write") as failure, files.atomic_write(tmp_path) as content:  # a folder
        content.write(b"a page")
    content.close()  # the traceback holds no view of it
    assert failure.tb is not None


def test_contents_reach_the_disk_before_names_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not find a new name with old bytes."""
    calls: list[str] = []
    for name in ("fsync", "replace", "write"):
        real = getattr(os, name)

        def noted(*args: Any, name: str = name, real: Any = real) -> Any:
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(files.os, name, noted)
    files.replace(tmp_path / "file", b"x")
    assert calls == ["write", "fsync", "replace", "fsync"]


def test_the_device_that_is_always_full() -> None:
    with pytest.raises(OSError, match=r"No space left.*full.*same command"):
        files.append(Path("/dev/full"), b"x")


def test_cutting(tmp_path: Path) -> None:
    path = tmp_path / "log"
    files.truncate(path, 0)
    assert files.append(path, b"one\n") == 4
    assert files.append(path, b"two\n") == 8
    files.truncate(path, 4)
    assert path.read_bytes() == b"one\n"
    with pytest.raises(ValueError, match=r"has 4 bytes, fewer than 9"):
        files.truncate(path, 9)


# Checkpoints


SECOND = Position(1, 2)


def committed_once(path: Path, position: Position = SECOND, **state: Any) -> None:
    commit(path, {"w": torch.arange(3.0)}, state, Header.of(position, RecordsPrefix(), False), read_header(path))


def test_a_commit_is_read_back_and_clears_all_but_the_one_before_it(tmp_path: Path) -> None:
    committed_once(tmp_path, Position(0, 0), k=0)
    committed_once(tmp_path, Position(0, 1), k=1)
    (tmp_path / "state-9-9.safetensors").write_bytes(b"of an interrupted commit")
    (tmp_path / "x.tmp").write_bytes(b"of an interrupted write")
    committed_once(tmp_path, Position(1, 2), lr=0.1)
    about = read_header(tmp_path)
    assert about is not None
    assert about.position == Position(1, 2)
    assert read_state(tmp_path, about) == {"lr": 0.1}
    assert torch.equal(read_weights(tmp_path)["w"], torch.arange(3.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        WEIGHTS, PREVIOUS, "state-0-1.safetensors", "state-1-2.safetensors",
    ]  # fmt: skip


def test_tied_weights_are_kept(tmp_path: Path) -> None:
    w = torch.rand(2)
    commit(tmp_path, {"a": w, "b": w, "c": w[:1]}, {"a": w, "b": w}, Header.of(Position(), RecordsPrefix(), False))
    assert read_weights(tmp_path).keys() == {"a", "b", "c"}


@pytest.mark.parametrize("damage", [b"", b"x" * 7, b"\xff" * 64])
@pytest.mark.parametrize("name", [WEIGHTS, "state-1-2.safetensors"])
def test_damage_is_named(damage: bytes, name: str, tmp_path: Path) -> None:
    committed_once(tmp_path)
    about = read_header(tmp_path)
    assert about is not None
    (tmp_path / name).write_bytes(damage)
    with pytest.raises(ValueError, match=f"{name} is no checkpoint"):
        read_header(tmp_path) if name == WEIGHTS else read_state(tmp_path, about)


def test_a_state_of_another_commit_is_not_taken(tmp_path: Path) -> None:
    committed_once(tmp_path, Position(1, 1))
    other = (tmp_path / "state-1-1.safetensors").read_bytes()
    committed_once(tmp_path, Position(1, 2))
    (tmp_path / "state-1-2.safetensors").write_bytes(other)
    about = read_header(tmp_path)
    assert about is not None
    with pytest.raises(ValueError, match="another checkpoint"):
        read_state(tmp_path, about)
    (tmp_path / "state-1-2.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="state-1-2"):
        read_state(tmp_path, about)


def test_a_checkpoint_that_points_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    records = {"length": 0, "digest": ""}
    said = {"format": 2, "position": {"epoch": 0, "step": 0}, "state": "../x", "records": records, "finished": False}
    tensors = {"w": torch.ones(1)}
    save_file(tensors, tmp_path / WEIGHTS, with_digests(tensors, {"steppe": json.dumps(said)}))
    with pytest.raises(ValueError, match="outside its folder"):
        read_header(tmp_path)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    run = train(config(tmp_path, ema=0.9))
    for path in run.path.iterdir():
        assert path.suffix in {".safetensors", ".yaml", ".jsonl", ".lock"}
    text = "".join(p.read_text() for p in Path(steppe.__file__).parent.glob("training/*.py"))
    assert "import pickle" not in text
    assert "torch.load" not in text
    assert "torch.save" not in text


# Records and loggers


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    as_read, kept = append_record(tmp_path, {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": 0.1}}, RecordsPrefix())
    files.append(tmp_path / checkpoint.RECORDS, b'{"half')
    assert read_records(tmp_path, kept) == [as_read] == [{"a": None, "b": [None, 1.5], "c": {"d": 0.1}}]


def test_numbers_of_a_record_by_path() -> None:
    record = {"epoch": 1, "measures": {"trace": {"value": 2.0, "kind": "exact"}}, "corrupted": {"fog": [0.5, 0.4]}}
    assert numbers(record) == {
        "epoch": 1, "measures/trace/value": 2.0, "corrupted/fog/1": 0.5, "corrupted/fog/2": 0.4,
    }  # fmt: skip


def scalars_in(path: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own
def test_loggers_have_every_record_once_after_any_number_of_starts(tmp_path: Path) -> None:
    settings = config(tmp_path, epochs=4, loggers=["csv", "tensorboard"], measures=["loss"], measure_every=2)
    stopped(settings, 3)
    crashed(settings, 12)
    run = train(settings)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [{k: float(v) for k, v in row.items() if v} for row in rows] == [numbers(r) for r in run.records]
    found = scalars_in(tmp_path / "tensorboard")
    assert found["train_loss"] == [(r["step"], pytest.approx(r["train_loss"])) for r in run.records]
    assert [step for step, _ in found["measures/loss/value"]] == [10, 20]


class Noted:
    """A tracker of a user's own."""

    told: ClassVar[list[Any]] = []

    def __init__(self, path: Path):
        self.told.append(path)

    def log_params(self, params: Any) -> None:
        self.told.append(params)

    def log_metrics(self, step: int, metrics: Any) -> None:
        assert len(open_run(self.told[0]).records) == metrics["epoch"]  # safe by the time that others hear of it
        self.told.append((step, metrics))

    def close(self) -> None:
        self.told.append("closed")


def test_a_logger_of_ones_own(tmp_path: Path) -> None:
    run = train(config(tmp_path, loggers=["test_training_files:Noted"]))
    path, params, first, second, end = Noted.told
    assert (path, end) == (tmp_path, "closed")
    assert params["method"] == "sam"
    assert [first, second] == [(r["step"], numbers(r)) for r in run.records]


def test_an_unknown_logger_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no logger 'cvs'. Did you mean 'csv'"):
        train(config(tmp_path / "run", loggers=["cvs"]))
    assert not (tmp_path / "run").exists()


# Folders


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"no run's folder.*thesis.tex"):
        train(config(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


HOLD = """
import sys, time
from pathlib import Path
from steppe.training.folder import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_while_the_first_holds_the_folder(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    with first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(RuntimeError, match=rf"process {first.pid} on \S+: wait"):
            train(config(tmp_path))
        first.kill()
    train(config(tmp_path, epochs=1))  # the system let go of the lock


def test_two_runs_at_once_in_one_process(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(RuntimeError, match=f"process {os.getpid()}"):
        train(config(tmp_path))


@pytest.mark.parametrize("text", ["", "- 1", "config: 3", "config: [", "a: 1"])
def test_a_run_yaml_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"run.yaml does not describe a run"):
        open_run(tmp_path)


def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("config: {learning_rate: 1}\ntask: {}\ndigest: edited")
    with pytest.raises(ValueError, match=r"no setting 'learning_rate'"):
        open_run(tmp_path)


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run's folder"):
        open_run(tmp_path / "nowhere")


# Positions and configurations


@given(st.integers(1, 50), st.integers(1, 12))
def test_epochs_add_up_to_all_steps(steps: int, per_epoch: int) -> None:
    timeline = Timeline(steps, per_epoch)
    lengths = [timeline.length(e) for e in range(timeline.epochs)]
    assert sum(lengths) == steps
    assert all(0 < n <= per_epoch for n in lengths)
    assert timeline.taken(Position(timeline.epochs)) == steps


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs is 0, and has to be a whole number, 1 or more"),
        ({"fraction": 0.0}, "more than 0 and at most 1"),
        ({"momentum": 1.0}, "less than 1"),
        ({"severities": [6]}, r"severities is \[6\]"),
        ({"nesterov": True, "optimizer": "adam"}, "nesterov"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**changes)


def test_a_configuration_needs_no_torch() -> None:
    code = "import sys, steppe.training; steppe.training.Config(); assert 'torch' not in sys.modules"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.perf_counter() - start < 5


def test_a_thing_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be"):
        train(config(tmp_path, method_options={"rho": nn.Linear(1, 1)}))
