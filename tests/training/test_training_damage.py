"""Law: a run's folder is read as it was written, or not at all: damage is refused by the name of what it is in."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training_runs import assert_same_end, config

from steppe._util.checkpoints import read_checkpoint
from steppe._util.digests import DIGEST, DIGESTS
from steppe.training import Run, open_run, train
from steppe.training.checkpoint import PREVIOUS, WEIGHTS, load
from steppe.training.schedule import Position

FLIPS = 60  # of random bits in each file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of four epochs with averages, measures and all its files."""
    folder = tmp_path_factory.mktemp("whole")
    return train(config(folder, epochs=4, ema=0.9, swa=0.3, measures=["loss"], loggers=["csv"]))


def read(path: Path) -> dict[str, Any]:
    """Everything that a folder says, in values that compare bitwise."""
    run = open_run(path)
    previous = load(path, PREVIOUS)
    said = {"about": run.about, "config": asdict(run.config), "records": run.records, "finished": run.finished}
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


# A check that is switched off


def bits(path: Path, part: bytes) -> Iterator[str]:
    """Flips each bit of a part of a file, one after the other, and says which."""
    content = path.read_bytes()
    start = content.index(part)
    for at in range(start, start + len(part)):
        for bit in range(8):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            yield f"bit {bit} of byte {at}"
    path.write_bytes(content)


def test_each_bit_of_a_digest_and_its_name_is_checked(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / "run.yaml").read_bytes()
    for where in bits(tmp_path / "run.yaml", text[text.index(b"digest: ", text.index(b"starts:")) :].rstrip()):
        with pytest.raises(ValueError, match=r"run\.yaml"):
            pytest.fail(f"{where}: {open_run(tmp_path)}")
    for name in (b'"digests"', b'"digest"', b'"steppe"', b'format\\":2'):
        for where in bits(tmp_path / WEIGHTS, name.replace(b":", b": ")):
            with pytest.raises(ValueError, match=WEIGHTS):
                pytest.fail(f"{where}: {open_run(tmp_path).weights().keys()}")
    assert read(tmp_path) == read(whole.path)


@pytest.mark.parametrize("key", [DIGEST, DIGESTS])
def test_weights_by_themselves_need_both_digests(key: str, whole: Run, tmp_path: Path) -> None:
    """As `steppe measure` and a study's pool take them; files of other programs have none."""
    path = tmp_path / WEIGHTS
    with safe_open(whole.path / WEIGHTS, "pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(whole.path / WEIGHTS)
    metadata[f"{key}x"] = metadata.pop(key)
    for left in (metadata, {"steppe": metadata["steppe"]}):  # nothing but what says that it is ours
        save_file(tensors, path, left)
        with pytest.raises(ValueError, match=f"{WEIGHTS} .*damaged"):
            read_checkpoint(path)
    save_file(tensors, path, {"format": "pt"})
    assert read_checkpoint(path).keys() == tensors.keys()


def test_a_format_without_digests_is_refused(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    with safe_open(whole.path / WEIGHTS, "pt") as file:
        header = json.loads(file.metadata()["steppe"])
    save_file(load_file(whole.path / WEIGHTS), tmp_path / WEIGHTS, {"steppe": json.dumps(header | {"format": 1})})
    with pytest.raises(ValueError, match=f"{WEIGHTS} .*its format is 1; this version of steppe reads 2"):
        open_run(tmp_path)


def test_a_file_that_was_changed_on_purpose_says_so(whole: Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "run.yaml"
    moved = file.read_text().replace("data_root: data", "data_root: elsewhere")
    file.write_text(moved)
    with pytest.raises(ValueError, match="If you changed it on purpose, write `digest: edited` in it"):
        open_run(tmp_path)
    lines = [line for line in moved.splitlines() if not line.startswith("digest:")]
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="its digest is missing or does not match"):
        open_run(tmp_path)
    file.write_text("\n".join([*lines, "digest: edited"]))
    assert open_run(tmp_path).config.data_root == "elsewhere"
