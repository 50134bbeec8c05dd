"""What `check` says of folders and files, whole and damaged."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    PUBLISHED,
    WRITERS_OF_PICTURES,
    declare,
    idx_bytes,
    publish,
    write_cifar_binary,
    write_cifar_c,
    write_cifar_python,
    write_classes,
    write_mnist,
    write_svhn,
    write_tiny_imagenet,
    write_tiny_imagenet_c,
)

from steppe.data import small_images
from steppe.data.check import Part, check


def only(path: Path):
    """The one thing that is found at a path."""
    report = check(path)
    assert json.loads(json.dumps(report.to_dict()))["ok"] == report.ok
    assert report.path == str(path)
    (found,) = report.found
    assert str(found) in str(report)
    return found


def test_each_published_layout_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", (6, 4))
    write_mnist(tmp_path / "FashionMNIST" / "raw", (5, 3), zipped=True)
    write_cifar_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    write_cifar_python(tmp_path / "cifar-100-python", "cifar100")
    write_svhn(tmp_path)
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    write_cifar_c(tmp_path / "CIFAR-10-C")
    write_tiny_imagenet_c(tmp_path / "Tiny-ImageNet-C")
    for folder, write in WRITERS_OF_PICTURES.values():
        write(tmp_path / folder)
    publish(monkeypatch, "cifar100", tmp_path / "cifar-100-python")
    for name in ("svhn", "flowers102", "stanford-cars"):
        publish(monkeypatch, name, tmp_path)
    report = check(tmp_path)
    assert report.ok
    assert [one.what for one in report.found] == [*PUBLISHED, "cifar10-c", "tiny-imagenet-c"]
    parts = {one.what: one.parts for one in report.found}
    assert parts["mnist"] == (Part("train", 6, (1, 28, 28), 10), Part("test", 4, (1, 28, 28), 10))
    assert parts["fashion-mnist"] == (Part("train", 5, (1, 28, 28), 10), Part("test", 3, (1, 28, 28), 10))
    assert parts["cifar10"] == (Part("train", 15, (3, 32, 32), 10), Part("test", 3, (3, 32, 32), 10))
    assert parts["cifar100"] == (Part("train", 3, (3, 32, 32), 100), Part("test", 3, (3, 32, 32), 100))
    assert parts["svhn"] == (Part("train", 11, (3, 32, 32), 10), Part("test", 11, (3, 32, 32), 10))
    assert parts["tiny-imagenet"] == (Part("train", 6, (3, 64, 64), 3), Part("test", 3, (3, 64, 64), 3))
    assert parts["flowers102"] == (Part("train", 3, (3, 224, 224), 102), Part("test", 2, (3, 224, 224), 102))
    assert parts["tiny-imagenet-c"] == (Part("fog", 3, (3, 64, 64), 3), Part("gaussian_noise", 3, (3, 64, 64), 3))
    assert parts["cifar10-c"] == (Part("fog", 4, (3, 32, 32), 10), Part("gaussian_noise", 4, (3, 32, 32), 10))
    assert "train 15 rows of 3 x 32 x 32 in 10 classes" in str(report)
    assert "the published set has 50,000 rows to train on and 10,000 to test on" in str(report)


def test_a_set_of_the_published_size_has_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar_binary(tmp_path, "cifar100")
    assert only(tmp_path).notes
    declare(monkeypatch, "cifar100", rows=(3, 3))
    assert not only(tmp_path).notes


def test_mnist_and_its_relative_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = write_mnist(tmp_path)
    assert only(tmp_path).what == "mnist"
    digest = hashlib.sha256(held["t10k-labels-idx1-ubyte"].tobytes()).hexdigest()
    monkeypatch.setitem(small_images.TEST_LABELS, digest, "fashion-mnist")
    assert only(tmp_path).what == "fashion-mnist"


def test_own_data(tmp_path: Path) -> None:
    write_classes(tmp_path / "pictures")
    assert only(tmp_path / "pictures").parts == (Part("train", 8, (3, 6, 8), 2), Part("test", 2, (3, 6, 8), 2))
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 3)), y=np.zeros(10))
    found = only(tmp_path / "a.npz")
    assert found.parts[0] == Part("train", 8, (3,), 0)
    assert "train 8 rows of 3" in str(found)
    assert "classes" not in str(found)


def test_single_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(5)))
    assert only(tmp_path / "t10k-labels-idx1-ubyte").parts == (Part("t10k-labels-idx1-ubyte", 5, (), 0),)
    write_svhn(tmp_path)
    publish(monkeypatch, "svhn", tmp_path)
    assert only(tmp_path / "train_32x32.mat").parts == (Part("train_32x32", 11, (3, 32, 32), 10),)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"half of it")
    assert "its sha256 is" in only(tmp_path / "cifar-10-binary.tar.gz").problem


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("a.npz", b"PK", "a.npz"),
        ("a.mat", b"PK", "not a file of SVHN as published"),
        ("a.txt", b"hello", "not an IDX file"),
        ("empty", b"", "not an IDX file"),
    ],
)
def test_files_that_are_nothing(tmp_path: Path, name: str, body: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(body)
    found = only(tmp_path / name)
    assert words in found.problem
    assert not check(tmp_path / name).ok
    assert "PROBLEM" in str(found)


def test_folders_that_are_nothing(tmp_path: Path) -> None:
    assert "no such file or folder" in only(tmp_path / "nowhere").problem
    assert "It holds nothing; steppe reads MNIST" in only(tmp_path).problem
    (tmp_path / "notes.txt").write_text("x")
    assert "It holds notes.txt" in only(tmp_path).problem


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    found = only(tmp_path)
    assert found.what == "cifar10"
    assert found.problem == "it lacks data_batch_4.bin"
    write_mnist(tmp_path / "flat")
    write_svhn(tmp_path / "flat")
    assert [one.what for one in check(tmp_path / "flat").found] == ["mnist", "svhn"]
    write_mnist(tmp_path / "plain")
    (tmp_path / "plain" / "t10k-labels-idx1-ubyte").unlink()
    assert only(tmp_path / "plain").problem == "it lacks t10k-labels-idx1-ubyte"


def test_what_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    write_svhn(tmp_path)
    publish(monkeypatch, "svhn", tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    report = check(tmp_path)
    assert not report.ok
    assert {one.what: bool(one.problem) for one in report.found} == {"cifar10": True, "svhn": False}
    assert str(path) in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path)
