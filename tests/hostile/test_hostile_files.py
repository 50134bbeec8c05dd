"""Files that somebody else wrote, and meant to do harm with: refused early, with their name, in a second."""

from __future__ import annotations

import json
import sqlite3
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from training_runs import config

from steppe._util.checkpoints import read_checkpoint
from steppe._util.digests import DIGEST, DIGESTS, digest, with_digests
from steppe.cli.entry import main
from steppe.ensembles.members import open_ensemble
from steppe.measures import Slice
from steppe.measures.landscape import empty_slice
from steppe.studies import Store
from steppe.studies.schema import insert
from steppe.training import open_run, train
from steppe.training.checkpoint import WEIGHTS, read_header, read_state

# checkpoints that inflate


def checkpoint(path: Path, *, rewrite: Callable[[zipfile.ZipFile, str, bytes], None]) -> Path:
    """What torch.save wrote, with each of its records written once more by `rewrite`."""
    torch.save({"weight": torch.zeros(1000)}, path)
    with zipfile.ZipFile(path) as whole:
        records = {entry.filename: whole.read(entry) for entry in whole.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in records.items():
            rewrite(archive, name, body)
    return path


@pytest.mark.slow
def test_a_checkpoint_that_inflates_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"weight": torch.zeros(1 << 26)}, path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in whole.infolist():
            archive.writestr(entry.filename, whole.read(entry))
    assert (tmp_path / "small.pt").stat().st_size < 300_000
    with pytest.raises(ValueError, match=r"small\.pt .*declares 268,\d{3},\d{3} bytes"):
        read_checkpoint(tmp_path / "small.pt")


@pytest.mark.parametrize("record", ["data.pkl", "data/0", "byteorder"])
def test_torch_save_does_not_compress_and_we_do_not_inflate(tmp_path: Path, record: str) -> None:
    def squeezed(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
        kind = zipfile.ZIP_DEFLATED if name.endswith(record) else zipfile.ZIP_STORED
        archive.writestr(name, body, kind)

    with pytest.raises(ValueError, match=r"a\.pt .*(compressed|inflate)"):
        read_checkpoint(checkpoint(tmp_path / "a.pt", rewrite=squeezed))


def test_records_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A thousand entries of the directory, all of which name the same bytes."""

    def many(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
        archive.writestr(name, body)
        if name.endswith("data/0"):
            entry = archive.infolist()[-1]
            for k in range(1, 1000):
                other = zipfile.ZipInfo(name.removesuffix("0") + str(k))
                for same in ("header_offset", "file_size", "compress_size", "CRC"):
                    setattr(other, same, getattr(entry, same))
                archive.filelist.append(other)

    with pytest.raises(ValueError, match=r"a\.pt .*declares 4,\d{3},\d{3} bytes"):
        read_checkpoint(checkpoint(tmp_path / "a.pt", rewrite=many))


def test_a_flipped_bit_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.full((1000,), 7.0)}, path)
    assert torch.equal(read_checkpoint(path)["weight"], torch.full((1000,), 7.0))
    body = bytearray(path.read_bytes())
    body[body.index(torch.full((4,), 7.0).numpy().tobytes()) + 2000] ^= 1
    path.write_bytes(body)
    with pytest.raises(ValueError, match=r"a\.pt .*damaged.*CRC"):
        read_checkpoint(path)


# YAML

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML = {
    "aliases": LAUGHS,
    "flow": "a: " + "[" * 20_000 + "]" * 20_000,
    "mappings": "a: " + "{a: " * 2000 + "1" + "}" * 2000,
    "block": "a:\n" + "".join("  " * k + "- \n" for k in range(1, 600)),
    "number": "a: 1" + "0" * 5000,
    "sexagesimal": 'a: !!int "1' + ":1" * 200_000 + '"',
    "empty number": 'a: !!int ""',
    "truth": "a: !!bool perhaps",
    "date": "a: !!timestamp never",
    "key": "? [1, 2]\n: 3",
    "tag": "a: !!python/object/apply:os.getcwd []",
    "bytes": b"a: \xff\xfe",
    "large": "a: 1\n" * 2_000_000,
    "two documents": "a: 1\n--- \nb: 2",
}


def refused(ask: Callable[[], object], name: str) -> None:
    """A ValueError that names the file, soon."""
    begun = time.monotonic()
    with pytest.raises(ValueError, match=name):
        ask()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("body", YAML.values(), ids=YAML)
@pytest.mark.parametrize(
    ("name", "opened"), [("run.yaml", open_run), ("ensemble.yaml", open_ensemble)], ids=["run", "ensemble"]
)
def test_yaml_of_folders(tmp_path: Path, body: str | bytes, name: str, opened: Callable[[Path], object]) -> None:
    whole = body if isinstance(body, bytes) else f"config: {{}}\nensemble: {{}}\n{body}".encode()
    (tmp_path / name).write_bytes(whole)
    refused(lambda: opened(tmp_path), name)


@pytest.mark.parametrize("body", YAML.values(), ids=YAML)
@pytest.mark.parametrize("words", [["train", "--config"], ["study", "status"]], ids=["options", "study"])
def test_yaml_of_commands(
    tmp_path: Path, body: str | bytes, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "given.yaml").write_bytes(body if isinstance(body, bytes) else body.encode())
    begun = time.monotonic()
    assert main([*words, str(tmp_path / "given.yaml")]) == 2
    assert time.monotonic() - begun < 5
    told = capsys.readouterr().err
    assert "given.yaml" in told
    assert "unexpected" not in told


@pytest.mark.parametrize("text", ["{" + LAUGHS.replace("\n", ", ") + "}", "{a: " + "[" * 300 + "]" * 300 + "}"])
@pytest.mark.parametrize("place", ["model_options: {}", "lr: {}", "augment: [{}]", "model_options: {{a: {{b: {}}}}}"])
def test_yaml_within_yaml(tmp_path: Path, text: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A text in a file is a text: nothing reads it as YAML once more."""
    (tmp_path / "given.yaml").write_text(place.format(json.dumps(text)))
    begun = time.monotonic()
    assert main(["train", "--dry-run", "--config", str(tmp_path / "given.yaml")]) == 2
    assert time.monotonic() - begun < 5
    told = capsys.readouterr().err
    assert "given.yaml" in told or f"there is no augmentation {text!r}" in told


# JSON

DEEP = "[" * 100_000 + "]" * 100_000
STEEP = "[" * 500 + "]" * 500  # which json.loads builds, and recursive functions do not survive


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "a"
    train(config(folder, epochs=1))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    for file in trained.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def relabelled(path: Path, **changed: Callable[[str], str]) -> None:
    """The same tensors with other metadata."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        about = dict(file.metadata())
    about = {k: v for k, v in about.items() if k not in (DIGEST, DIGESTS)}
    save_file(
        tensors, path, with_digests(tensors, about | {key: change(about[key]) for key, change in changed.items()})
    )


@pytest.mark.parametrize("deep", [DEEP, STEEP], ids=["deep", "steep"])
def test_json_of_runs(run: Path, deep: str) -> None:
    done = read_header(run)
    assert done is not None
    records = run / "metrics.jsonl"
    whole = records.read_bytes()
    records.write_text(deep)
    kept = {"records": {"length": len(deep), "digest": digest(["", deep])}}  # whoever changes a file can do so too
    relabelled(run / WEIGHTS, steppe=lambda text: json.dumps(json.loads(text) | kept))
    refused(lambda: open_run(run), "metrics.jsonl")
    records.write_bytes(whole)
    relabelled(run / done.state, tree=lambda _: deep)
    refused(lambda: read_state(run, done), "state-")
    relabelled(run / done.state, steppe=lambda _: deep)
    refused(lambda: read_state(run, done), "state-")
    relabelled(run / WEIGHTS, steppe=lambda text: text.replace('"finished"', f'"more": {deep}, "finished"'))
    refused(lambda: open_run(run), WEIGHTS)


@pytest.mark.parametrize("deep", [DEEP, STEEP], ids=["deep", "steep"])
def test_json_of_slices(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "slice.npz"
    empty_slice([[0.0, 1.0]], ["a"], [1.0], [0]).save(path)
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **(arrays | {"about": np.array(deep)}))
    refused(lambda: Slice.load(path), "slice.npz")


@pytest.mark.parametrize("deep", [DEEP, STEEP], ids=["deep", "steep"])
@pytest.mark.parametrize(
    ("table", "row", "ask"),
    [
        ("notes", ("study", None, ""), lambda s: s.notes()),
        ("origins", (None,), lambda s: s.versions()),
        ("cells", ("b", "b", None, "{}", ""), lambda s: s.table()),
        ("cells", ("b", "b", "{}", None, ""), lambda s: s.table()),
        ("curves", (1, 1, None), lambda s: s.curves("a")),
    ],
    ids=["notes", "versions", "config", "groups", "curves"],
)
def test_json_of_stores(
    tmp_path: Path, deep: str, table: str, row: tuple[Any, ...], ask: Callable[[Store], Any]
) -> None:
    path = tmp_path / "study.sqlite"
    with Store.open(path):
        pass
    with sqlite3.connect(path) as db:
        insert(db, "cells", ("a", "a", "{}", "{}", ""))
        insert(db, table, [deep if x is None else x for x in row])
    db.close()
    with Store.reading(path) as store:
        refused(lambda: ask(store), "study.sqlite")


@pytest.mark.parametrize("lost", ["losses", "filled", "axis0", "names", "cost"])
def test_slices_that_lack_something_are_refused(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "slice.npz"
    whole = empty_slice([[0.0, 1.0]], ["a"], [1.0], [0])
    about = json.dumps({k: v for k, v in whole.about().items() if k != lost})
    held = {"about": np.array(about), "losses": whole.losses, "filled": whole.filled, "axis0": whole.axes[0]}
    np.savez(path, **{k: v for k, v in held.items() if k != lost})
    refused(lambda: Slice.load(path), "slice.npz")


def test_slices_that_inflate_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "slice.npz"
    about = json.dumps(empty_slice([[0.0]], ["a"], [1.0], [0]).about())
    np.savez_compressed(path, about=np.array(about), losses=np.zeros(9 << 20), filled=np.ones(1), axis0=np.ones(1))
    refused(lambda: Slice.load(path), "slice.npz")
