"""Law: a run's folder is read as it was written, or not at all: damage is refused by the name of what it is in."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training_runs import assert_same_end, config

from steppe._util.checkpoints import read_checkpoint
from steppe.training import Run, open_run, train
from steppe.training.checkpoint import PREVIOUS, WEIGHTS, load
from steppe.training.schedule import Position

FLIPS = 60  # of random bits in each file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of four epochs with averages, measures and all its files."""
    folder = tmp_path_factory.mktemp("whole")
    return train(config(folder, epochs=4, ema=0.9, swa=0.3, measures=["loss"], loggers=["csv"]))


ABOUT = ("config", "data", "rows", "task", "parameters", "steps", "steps_per_epoch", "starts")


def read(path: Path) -> dict[str, Any]:
    """Everything that a folder says, in values that compare bitwise."""
    run = open_run(path)
    previous = load(path, PREVIOUS)
    about = {k: v for k, v in run.about.items() if k in ABOUT}  # a digest under another name is none, and does no harm
    said = {"about": about, "config": asdict(run.config), "records": run.records, "finished": run.finished}
    said |= {"position": run.position, "previous": previous and (previous.about, str(previous.state))}
    kinds = {kind: run.weights(kind) for kind in ("last", "ema", "swa")} | {
        "before": previous.weights if previous else {}
    }
    for kind, weights in kinds.items():
        said |= {f"{kind} {k}": (t.dtype, t.shape, t.numpy().tobytes()) for k, t in weights.items()}
    return said


def flipped(path: Path, draws: random.Random) -> str:
    """Flips one bit of a file, and says which."""
    content = bytearray(path.read_bytes())
    at, bit = draws.randrange(len(content)), draws.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at}"


FILES = ["run.yaml", "metrics.jsonl", WEIGHTS, "state-4-0.safetensors", PREVIOUS, "state-3-0.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(name: str, whole: Run, tmp_path: Path) -> None:
    draws, expected, refused = random.Random(name), read(whole.path), 0
    for _ in range(FLIPS):
        folder = tmp_path / "run"
        shutil.copytree(whole.path, folder)
        where = flipped(folder / name, draws)
        trouble = None
        try:
            found = read(folder)
        except (ValueError, FileNotFoundError) as error:
            trouble, refused = error, refused + 1
        if trouble is not None:
            assert name in str(trouble), f"{where}: {trouble}"
        else:
            assert found == expected, where
        shutil.rmtree(folder)
    assert refused > FLIPS // 3


def test_a_damaged_tensor_is_told_by_its_name(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(content)
    last = max(load_file(tmp_path / WEIGHTS), key=lambda name: _end(tmp_path / WEIGHTS, name))
    with pytest.raises(ValueError, match=rf"{WEIGHTS} .*the tensor '{last}'"):
        open_run(tmp_path).weights()
    with pytest.raises(ValueError, match=rf"{WEIGHTS} .*the tensor '{last}'"):
        read_checkpoint(tmp_path / WEIGHTS)  # the file by itself, as `steppe measure` takes it


def _end(path: Path, name: str) -> int:
    content = path.read_bytes()
    end: int = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])[name]["data_offsets"][1]
    return end


# One damaged or lost file


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 4
    path.write_bytes(content)


def last_line(path: Path) -> None:
    content = path.read_bytes()
    other = b"8" if content[-5:-4] == b"9" else b"9"  # a byte that is not there already
    path.write_bytes(content[:-5] + other + content[-4:])


@pytest.mark.parametrize(
    ("name", "hurt"),
    [
        (WEIGHTS, lose),
        (WEIGHTS, flip),
        ("state-3-0.safetensors", lose),
        ("state-3-0.safetensors", flip),
        ("metrics.jsonl", last_line),
    ],
)
def test_a_run_goes_on_from_the_checkpoint_before_the_damaged_one(
    name: str, hurt: Callable[[Path], None], whole: Run, tmp_path: Path
) -> None:
    settings = replace(whole.config, out=str(tmp_path))
    train(settings, until=3)
    records = (tmp_path / "metrics.jsonl").read_text().splitlines()
    hurt(tmp_path / name)
    with pytest.warns(UserWarning, match=rf"{name}.* Going back to {PREVIOUS}, at epoch 3, step 0"):
        run = train(settings)
    assert_same_end(run, whole)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[:2] == records[:2]  # they were not trained again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(settings).finished  # all is well again


def test_a_finished_run_with_a_damaged_checkpoint_trains_its_last_part_again(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    flip(tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=rf"{WEIGHTS}.*steppe train"):
        open_run(tmp_path).weights()
    with pytest.warns(UserWarning, match=rf"Going back to {PREVIOUS}, at epoch 4"):
        assert_same_end(train(replace(whole.config, out=str(tmp_path))), whole)


@pytest.mark.parametrize(
    "hurt", [{WEIGHTS: lose, PREVIOUS: lose}, {WEIGHTS: flip, PREVIOUS: flip}, {"metrics.jsonl": lose}]
)
def test_where_nothing_is_whole_nothing_is_deleted(
    hurt: dict[str, Callable[[Path], None]], whole: Run, tmp_path: Path
) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    for name, how in hurt.items():
        how(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=next(iter(hurt))):
        train(replace(whole.config, out=str(tmp_path)))
    assert contents(tmp_path) == before


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.name != "run.lock"}


def test_a_checkpoint_keeps_the_one_before_it_and_no_more(whole: Run) -> None:
    names = {p.name for p in whole.path.glob("*.safetensors")}
    assert names == {WEIGHTS, PREVIOUS, "state-4-0.safetensors", "state-3-0.safetensors"}
    last, previous = load(whole.path), load(whole.path, PREVIOUS)
    assert last is not None
    assert previous is not None
    assert (last.about.position, previous.about.position) == (Position(4), Position(3))


# Folders from before there were digests


def without_digests(path: Path) -> None:
    """Makes a folder as the first version wrote it."""
    (path / PREVIOUS).unlink()
    for file in [path / WEIGHTS, *path.glob("state-*")]:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        said = json.loads(metadata["steppe"])
        said |= {"format": 1, "records": said["records"]["length"]}
        kept = {k: v for k, v in metadata.items() if k == "tree"} | {"steppe": json.dumps(said)}
        save_file(load_file(file), file, kept)
    text = (path / "run.yaml").read_text()
    (path / "run.yaml").write_text("".join(x for x in text.splitlines(True) if not x.startswith("digest:")))


def test_a_folder_without_digests_opens_and_goes_on(whole: Run, tmp_path: Path) -> None:
    settings = replace(whole.config, out=str(tmp_path))
    train(settings, until=2)
    expected = read(tmp_path)
    without_digests(tmp_path)
    found = read(tmp_path)
    assert found.pop("previous") is None
    assert found == {k: v for k, v in expected.items() if k in found}
    assert "last 2.weight" in found
    assert_same_end(train(settings), whole)
    flip(tmp_path / "metrics.jsonl")  # also the lines that had no digest have one now
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged"):
        open_run(tmp_path)
