"""Published layouts and data of one's own, as they come from disk."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import (
    CIFAR10_NAMES,
    PUBLISHED,
    cifar_parts,
    publish,
    python2_pickle,
    random_bytes,
    write_cifar_binary,
    write_cifar_c,
    write_cifar_python,
    write_classes,
    write_mnist,
    write_picture,
    write_svhn,
    write_tiny_imagenet,
)
from PIL import Image

from steppe.data import DATASETS, cifar_c, load
from steppe.data.registry import loaded_once
from steppe.training import Config
from steppe.training.problem import data_of


def loaded(name: str, root: Path):
    """A tiny data set under a published name, which `load` says is not the published one."""
    with pytest.warns(UserWarning, match="published set has"):
        return load(name, root)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", ["MNIST/raw", "MNIST", "mnist", "raw", "."])
def test_mnist_is_found_and_read(tmp_path: Path, place: str, zipped: bool) -> None:
    held = write_mnist(tmp_path / place, zipped=zipped)
    splits = loaded("mnist", tmp_path)
    for part, rows in (("train", splits.train), ("t10k", splits.test)):
        assert rows.is_images
        assert np.array_equal(rows.inputs[:, 0].numpy(), held[f"{part}-images-idx3-ubyte"])
        assert rows.targets.tolist() == held[f"{part}-labels-idx1-ubyte"].tolist()
        assert rows.targets.dtype == torch.int64
        assert rows.classes == tuple("0123456789")


def test_fashion_mnist_lies_beside_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST/raw", (3, 2))
    write_mnist(tmp_path / "FashionMNIST/raw", (5, 4))
    assert len(loaded("fashion-mnist", tmp_path).train) == 5
    assert loaded("fashion-mnist", tmp_path).test.classes[9] == "Ankle boot"
    assert len(loaded("mnist", tmp_path).train) == 3


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("plain", [False, True])
def test_cifar_is_found_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, layout: str, plain: bool
) -> None:
    places = {
        ("cifar10", "binary"): "cifar-10-batches-bin",
        ("cifar10", "python"): "cifar-10-batches-py",
        ("cifar100", "binary"): "cifar-100-binary",
        ("cifar100", "python"): "cifar-100-python",
    }
    write = write_cifar_binary if layout == "binary" else write_cifar_python
    held = write(tmp_path / ("." if plain else places[name, layout]), name)
    if layout == "python":
        publish(monkeypatch, name, tmp_path)
    splits = loaded(name, tmp_path)
    *train, test = cifar_parts(name)
    for parts, rows in ((train, splits.train), ([test], splits.test)):
        pixels = np.concatenate([held[part][0] for part in parts])
        labels = np.concatenate([held[part][1] for part in parts])
        assert rows.inputs.shape == (len(labels), 3, 32, 32)
        assert np.array_equal(rows.inputs.flatten(1).numpy(), pixels)  # red plane, green plane, blue plane, row by row
        assert rows.targets.tolist() == labels.tolist()
        assert len(rows.classes) == DATASETS[name].classes
    if name == "cifar10":
        assert list(splits.train.classes) == CIFAR10_NAMES


def test_our_python2_pickles_are_python_2_pickles() -> None:
    """The writer of the tests against Python's own reader, as CIFAR's page says to use it."""
    pixels = random_bytes(300, 7)
    written = {b"data": pixels, b"labels": [1, 2, 255], b"batch_label": b"x" * 300, b"filenames": [b"a.png"]}
    held = pickle.loads(python2_pickle(written), encoding="bytes")
    assert held.keys() == written.keys()
    assert held[b"data"].dtype == np.uint8
    assert np.array_equal(held.pop(b"data"), pixels)
    assert held == {k: v for k, v in written.items() if k != b"data"}


@pytest.mark.parametrize("compress", [False, True])
def test_svhn_counts_ten_as_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool) -> None:
    pixels = write_svhn(tmp_path, compress=compress)
    publish(monkeypatch, "svhn", tmp_path)
    rows = loaded("svhn", tmp_path).train
    assert rows.targets.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert rows.inputs.shape == (11, 3, 32, 32)
    assert rows.inputs[7, 2, 30, 5] == pixels[30, 5, 2, 7]
    assert torch.equal(rows.inputs, torch.from_numpy(np.einsum("hwcn->nchw", pixels).copy()))


@pytest.mark.parametrize("layout", ["annotated", "classes", "nested"])
@pytest.mark.parametrize("place", ["tiny-imagenet-200", "."])
def test_tiny_imagenet_in_both_layouts(tmp_path: Path, layout: str, place: str) -> None:
    root = tmp_path / "root"
    write_tiny_imagenet(root / place, layout)
    splits = loaded("tiny-imagenet", root)
    assert splits.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert splits.train.classes == ("n01443537", "n01629819", "n01641577")
    assert splits.test.inputs.shape == (3, 3, 64, 64)
    for rows in (splits.train, splits.test):  # the red of a picture was made from its class
        red = rows.inputs[:, 0].float().mean((1, 2)) / 60
        assert red.round().long().tolist() == rows.targets.tolist()


def test_cifar_c_reads_one_severity(tmp_path: Path) -> None:
    held = write_cifar_c(tmp_path / "CIFAR-10-C")
    for severity in (1, 3, 5):
        rows = cifar_c.read(tmp_path, "cifar10", "fog", severity)
        wanted = held["fog"][4 * (severity - 1) : 4 * severity]
        assert np.array_equal(rows.inputs.numpy(), np.moveaxis(wanted, 3, 1))
        assert rows.targets.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="Did you mean 'fog'"):
        cifar_c.read(tmp_path, "cifar10", "fogg", 1)
    with pytest.raises(ValueError, match="1 to 5"):
        cifar_c.read(tmp_path, "cifar10", "fog", 0)
    with pytest.raises(FileNotFoundError, match="steppe data get cifar100-c"):
        cifar_c.read(tmp_path, "cifar100", "fog", 1)


@pytest.mark.parametrize("second", ["test", "val", "validation"])
def test_a_folder_with_train_and_test(tmp_path: Path, second: str) -> None:
    write_classes(tmp_path / "train", "abc")
    write_classes(tmp_path / second, "abc", each=2)
    splits = load(f"folder:{tmp_path}")
    assert len(splits.train) == 15
    assert splits.test.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert splits.train.classes == ("a", "b", "c")
    assert splits.train.inputs.shape == (15, 3, 6, 8)
    assert splits.train.inputs[6, :, 3, 3].tolist() == [40, 10, 7]
    assert splits.validation is None


def test_a_folder_with_three_parts(tmp_path: Path) -> None:
    for part, each in (("train", 3), ("val", 2), ("test", 1)):
        write_classes(tmp_path / part, each=each)
    splits = load(f"folder:{tmp_path}")
    assert splits.validation is not None
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [6, 4, 2]


def test_one_folder_is_split_by_a_fixed_rule(tmp_path: Path) -> None:
    write_classes(tmp_path, "ab", each=7)
    splits = load(f"folder:{tmp_path}")
    assert splits.train.targets.tolist() == [0] * 6 + [1] * 6
    assert splits.test.inputs[:, 1, 0, 0].tolist() == [40, 40]  # the fifth of each class: its green is 10 * 4
    assert splits.test.targets.tolist() == [0, 1]


def test_grey_pictures_have_one_channel_unless_one_has_colours(tmp_path: Path) -> None:
    write_classes(tmp_path, mode="L", colour=90)
    assert load(f"folder:{tmp_path}").train.inputs.shape[1:] == (1, 6, 8)
    write_picture(tmp_path / "a" / "0.png", colour=(1, 2, 3))
    train = load(f"folder:{tmp_path}").train
    assert train.inputs[:2, :, 0, 0].tolist() == [[1, 2, 3], [90, 90, 90]]


def test_pictures_of_all_sizes_are_brought_to_one(tmp_path: Path) -> None:
    write_classes(tmp_path, size=(12, 12))
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 250  # the middle is white
    Image.fromarray(wide).save(tmp_path / "a" / "0.png")
    with pytest.raises(ValueError, match=r"12 x 12 where others are 30 x 10; .*@64"):
        load(f"folder:{tmp_path}")
    train = load(f"folder:{tmp_path}@5").train
    assert train.inputs.shape[1:] == (3, 5, 5)
    assert (train.inputs[0, :, :, 1:4] > 200).all()


def test_within_a_block_the_last_data_set_is_read_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_classes(tmp_path / name / "train", each=2)
        write_classes(tmp_path / name / "test", each=1)
    one, two = (f"folder:{tmp_path / name}" for name in ("one", "two"))
    with loaded_once(), loaded_once():
        first = load(one)
        write_picture(tmp_path / "one" / "train" / "a" / "new.png")
        assert load(one) is first
        assert len(load(two).train) == 4
        assert len(load(one).train) == 5  # read again: one data set is kept
    write_picture(tmp_path / "one" / "train" / "a" / "newer.png")
    assert len(load(one).train) == 6


def test_runs_on_the_same_rows_share_them_within_a_block() -> None:
    one, other = (Config(data="digits", label_noise=0.2, seed=seed) for seed in (0, 1))
    assert data_of(one) is not data_of(one)
    with loaded_once():
        first = data_of(one)
        assert data_of(replace(one, method="none", data_seed=0)) is first  # the same settings and seed of the rows
        assert data_of(other) is not first  # one at a time is kept
        again = data_of(one)
        assert again is not first
        assert again.digest == first.digest
        plain = data_of(replace(one, label_noise=0.0))
        assert data_of(replace(other, label_noise=0.0)) is plain  # nothing is drawn: any seed
        for change in ({"fraction": 0.5}, {"per_class": 3}, {"validation": 0.1}, {"held_out": 0.1}):
            assert data_of(replace(one, label_noise=0.0, **change)).digest != plain.digest


def test_npz_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    x, y = random_bytes(6, 5, 4, 3), np.arange(6) % 3
    np.savez_compressed(path, x_train=x, y_train=y[:, None], x_test=x[:2], y_test=y[:2])
    splits = load(f"npz:{path}")
    assert np.array_equal(splits.train.inputs.numpy(), np.moveaxis(x, 3, 1))  # channels first
    assert splits.train.targets.tolist() == [0, 1, 2, 0, 1, 2]
    assert splits.test.classes == ("0", "1", "2")
    assert splits.train.name == "own"


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (("train_images", "train_labels", "val_images", "val_labels", "test_images", "test_labels"), (4, 3, 2)),
        (("X_train", "y_train", "X_val", "y_val", "X_test", "y_test"), (4, 3, 2)),
        (("train_x", "train_y", "valid_x", "valid_y", "test_x", "test_y"), (4, 3, 2)),
    ],
)
def test_npz_knows_the_usual_spellings(tmp_path: Path, names: tuple[str, ...], parts: tuple[int, ...]) -> None:
    arrays = {}
    for i, count in enumerate(parts):
        arrays[names[2 * i]] = random_bytes(count, 3, 3)
        arrays[names[2 * i + 1]] = np.arange(count)
    np.savez(tmp_path / "a.npz", **arrays)
    splits = load(f"npz:{tmp_path / 'a.npz'}")
    assert splits.validation is not None
    assert (len(splits.train), len(splits.validation), len(splits.test)) == parts
    assert splits.train.inputs.shape[1:] == (1, 3, 3)


def test_npz_of_numbers_to_predict(tmp_path: Path) -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.linspace(0, 1, 10)
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(x), y=y)
    splits = load(f"npz:{tmp_path / 'a.npz'}")
    assert splits.train.inputs.dtype == splits.train.targets.dtype == torch.float32
    assert splits.train.classes == ()
    assert splits.test.inputs.tolist() == [[8, 9], [18, 19]]  # every fifth row
    assert len(splits.train) == 8


def test_npz_with_names_of_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=random_bytes(5, 1, 3, 3), labels=np.arange(5) % 2, classes=["cat", "dog"])
    splits = load(f"npz:{tmp_path / 'a.npz'}")
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.inputs.shape == (4, 1, 3, 3)


def test_names_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        load("cifr10")
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is not under nowhere.*steppe data get cifar10.*170 MB"):
        load("cifar10", "nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load("npz:nowhere.npz")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load("folder:nowhere")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path, "cifar10")
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_4\.bin"):
        load("cifar10", tmp_path)


def test_every_published_name_can_be_loaded_and_fetched() -> None:
    assert {"mnist", "cifar10", "flowers102"} <= set(PUBLISHED)
    for one in PUBLISHED.values():
        for file in one.files:
            kind, _, digest = file.digest.partition(":")
            assert len(digest) == {"sha256": 64, "md5": 32}[kind]
            assert int(digest, 16)
            assert file.url.startswith(("https://", "http://"))
            assert file.size > 500


@pytest.mark.parametrize("name", ["digits", "spirals", "teacher-student", "sparse-regression"])
def test_built_in_sets_need_no_files(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        splits = load(name, tmp_path / "nowhere")
    assert len(splits.train)
    assert len(splits.test)


def test_listing_data_sets_does_not_import_torch() -> None:
    lines = "import sys, steppe.data; from steppe.data import DATASETS, get, load, check, download"
    code = f"{lines}; len(DATASETS); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
