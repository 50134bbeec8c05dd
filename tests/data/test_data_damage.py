"""Damaged and hostile input: a clear error that names the file, nothing run, nothing written."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import shutil
import struct
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    idx_bytes,
    publish,
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steppe.data import DATASETS, DataError, Splits, cifar_c, load, npz
from steppe.data.download import unpack


def refused(name: str, root: Path, *words: str) -> None:
    """`load` gives a DataError with these words in it."""
    before = sorted(root.rglob("*"))
    with pytest.raises(DataError) as caught:
        load(name, root)
    for word in words:
        assert word in str(caught.value)
    assert sorted(root.rglob("*")) == before  # nothing was written


# IDX


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("train-images-idx3-ubyte", idx_bytes(random_bytes(6, 28, 28))[:-1], "4704 in all, and the file holds 4703"),
        ("train-images-idx3-ubyte", idx_bytes(random_bytes(6, 28, 28)) + b"x", "4704 in all, and the file holds more"),
        ("train-images-idx3-ubyte", b"", "it begins with nothing"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x03\x00", "ends inside its header"),
        ("train-images-idx3-ubyte", b"PK\x03\x04" + bytes(100), "not an IDX file"),
        ("train-images-idx3-ubyte", bytes([0, 0, 13, 3]) + bytes(100), "not an IDX file of bytes"),
        ("train-images-idx3-ubyte", idx_bytes(random_bytes(5, 28, 28)), "5 images but 6 labels"),
        ("train-images-idx3-ubyte", idx_bytes(random_bytes(6, 28)), "should be (rows, height, width)"),
        ("train-images-idx3-ubyte", idx_bytes(random_bytes(0, 28, 28)), "should be (rows, height, width)"),
        ("train-labels-idx1-ubyte", idx_bytes(np.array([0, 1, 2, 3, 4, 10])), "a label is 10, and the 10 classes"),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.arange(3)), "4 images but 3 labels"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x03" + b"\xff" * 12, "it declares"),
    ],
)
def test_damaged_idx(tmp_path: Path, name: str, body: bytes, words: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(body)
    file = "t10k-images" if "but 3 labels" in words else name.removesuffix("-ubyte")
    refused("mnist", tmp_path, file, words)


def test_damaged_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for body in (whole[:-4], whole[: len(whole) // 2], whole[:300] + b"\xff" * 20 + whole[320:], whole[:3]):
        path.write_bytes(body)
        refused("mnist", tmp_path, path.name)
    path.write_bytes(gzip.compress(idx_bytes(random_bytes(6, 28, 28)) + b"x"))
    refused("mnist", tmp_path, path.name, "4704 in all, and the file holds more")


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    write_mnist(tmp_path, zipped=True)
    bomb = gzip.compress(b"\x00\x00\x08\x03" + struct.pack(">3I", 60_000, 2800, 2800) + bytes(4_000_000))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    refused("mnist", tmp_path, "470,400,000,000 bytes", "bomb")
    bomb = gzip.compress(b"\x00\x00\x08\x03" + struct.pack(">3I", 1000, 1000, 1000) + bytes(4_000_000))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bomb)
    refused("mnist", tmp_path, "1,000,000,000 bytes and stores", "bomb")


def test_the_labels_of_another_set_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    from steppe.data import small_images

    held = write_mnist(tmp_path)
    digest = hashlib.sha256(held["t10k-labels-idx1-ubyte"].tobytes()).hexdigest()
    monkeypatch.setitem(small_images.TEST_LABELS, digest, "fashion-mnist")
    refused("mnist", tmp_path, "these are the files of fashion-mnist, not of mnist")


# CIFAR


def test_damaged_cifar_binary(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path, "cifar10")
    path = tmp_path / "data_batch_3.bin"
    whole = path.read_bytes()
    for body in (whole[:-1], whole + b"x", b""):
        path.write_bytes(body)
        refused("cifar10", tmp_path, "data_batch_3.bin", f"it has {len(body)} bytes", "multiple of 3073")
    path.write_bytes(bytes([10]) + whole[1:])
    refused("cifar10", tmp_path, "data_batch_3.bin", "a label is 10")
    path.write_bytes(whole)
    (tmp_path / "batches.meta.txt").write_text("cat\ndog\n")
    refused("cifar10", tmp_path, "batches.meta.txt", "names of 10 classes")


def test_cifar100_binary_looks_at_fine_labels(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path, "cifar100")
    path = tmp_path / "train.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:1] + bytes([100]) + whole[2:])
    refused("cifar100", tmp_path, "train.bin", "a label is 100")


class Runs:
    """Does something when it is unpickled."""

    def __init__(self, what: Callable[..., object], *given: object) -> None:
        self.call = (what, given)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_pickles_are_read_as_published_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_cifar_python(tmp_path, name)
    publish(monkeypatch, name, tmp_path)
    trace = tmp_path / "trace"
    code = pickle.dumps({"data": random_bytes(3, 3072), "labels": Runs(os.mkdir, str(trace))})
    pickle.loads(code)  # the test of the test: Python's own reader runs it
    assert trace.exists()
    trace.rmdir()
    for file in DATASETS[name].members:
        whole = (tmp_path / file).read_bytes()
        for body in (code, b"", whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
            (tmp_path / file).write_bytes(body)
            refused(name, tmp_path, file, "as published: its sha256 is")
        (tmp_path / file).write_bytes(whole)
    with pytest.warns(UserWarning, match="published set has"):
        assert len(load(name, tmp_path).test) == 3


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_with_code_in_it_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    """Even if its digest is the published one."""
    write_cifar_python(tmp_path, "cifar10")
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({"data": Runs(os.mkdir, str(tmp_path / "trace"))}, protocol))
    publish(monkeypatch, "cifar10", tmp_path)
    refused("cifar10", tmp_path, "mkdir, which is not allowed")


# SVHN


def test_svhn_is_read_as_published_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of .mat files never sees others: no one has made it safe against them."""
    write_svhn(tmp_path)
    refused("svhn", tmp_path, "train_32x32.mat", "not a file of SVHN as published: its sha256 is")
    publish(monkeypatch, "svhn", tmp_path)
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for body in (whole[:5000], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"PK\x03\x04" + whole):
        path.write_bytes(body)
        refused("svhn", tmp_path, "train_32x32.mat", "not a file of SVHN as published")
    path.write_bytes(whole)
    with pytest.warns(UserWarning, match="published set has"):
        assert len(load("svhn", tmp_path).train) == 11


# pictures


def test_broken_pictures(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", "ab", each=3)
    write_classes(tmp_path / "test", "ab", each=1)
    path = tmp_path / "train" / "b" / "2.jpg"
    write_picture(path, (8, 6))
    whole = path.read_bytes()
    name = f"folder:{tmp_path}"
    for body in (whole[: len(whole) - 30], whole[:20], b""):
        path.write_bytes(body)
        refused(name, tmp_path, str(path))
    write_picture(path, (9, 6))
    refused(name, tmp_path, str(path), "it is 9 x 6 where others are 8 x 6")
    path.unlink()
    shutil.rmtree(tmp_path / "test" / "b")
    refused(name, tmp_path, "test", "they differ in b")
    (tmp_path / "test" / "b").mkdir()
    refused(name, tmp_path, str(tmp_path / "test" / "b"), "without pictures")
    shutil.rmtree(tmp_path / "test")
    refused(name, tmp_path, "none of test, val")


def test_a_picture_that_is_a_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript under the name of a JPEG: Pillow would start Ghostscript for it."""
    from PIL import EpsImagePlugin, Image

    trace = tmp_path / "trace"
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\nmkdir -p {trace}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", str(ghostscript))
    write_classes(tmp_path / "pictures")
    Image.new("RGB", (8, 6)).save(tmp_path / "pictures" / "a" / "0.jpg", "EPS")
    with pytest.raises(OSError), Image.open(tmp_path / "pictures" / "a" / "0.jpg") as picture:  # noqa: PT011
        picture.load()
    assert trace.exists()  # the test of the test
    trace.rmdir()
    refused(f"folder:{tmp_path / 'pictures'}", tmp_path / "pictures", "0.jpg", "not a picture that can be read")
    assert not trace.exists()


def test_a_picture_of_many_pixels_in_few_bytes_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, "a")
    (tmp_path / "a" / "0.png").write_bytes(_png_that_says(200_000, 200_000))
    refused(f"folder:{tmp_path}", tmp_path, "0.png")
    refused(f"folder:{tmp_path}@8", tmp_path, "0.png")
    (tmp_path / "a" / "0.png").write_bytes(_png_that_says(12_000, 12_000))
    refused(f"folder:{tmp_path}@8", tmp_path, "0.png", "decompression bomb")
    with warnings.catch_warnings():  # also where warnings are only shown
        warnings.simplefilter("default")
        refused(f"folder:{tmp_path}@8", tmp_path, "0.png", "decompression bomb")


def _png_that_says(width: int, height: int) -> bytes:
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_empty_folders(tmp_path: Path) -> None:
    refused(f"folder:{tmp_path}", tmp_path, "no class folders")
    (tmp_path / "a").mkdir()
    refused(f"folder:{tmp_path}", tmp_path, str(tmp_path / "a"), "without pictures")
    write_classes(tmp_path, "a", each=4)
    refused(f"folder:{tmp_path}", tmp_path, "every 5th picture", "'a' has fewer")


def test_damaged_tiny_imagenet(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny_imagenet(folder)
    path = folder / "val" / "val_annotations.txt"
    whole = path.read_text()
    for text, words in (
        ("", "lists no pictures"),
        (whole.replace("n01641577", "n99"), "line 3: 'n99' is not a class"),
        (whole + "val_9.JPEG\tn01641577\n", "line 4: there is no"),
        ("../../train/n01443537/images/n01443537_0.JPEG\tn01443537\n", "line 1"),
        ("val_0.JPEG\n", "line 1: '' is not a class"),
        ("/etc/passwd\tn01443537\n", "line 1: '/etc/passwd' is not the name of a file"),
    ):
        path.write_text(text)
        refused("tiny-imagenet", tmp_path, "val_annotations.txt", words)
    path.write_text(whole)
    picture = folder / "train" / "n01629819" / "images" / "n01629819_1.JPEG"
    picture.write_bytes(picture.read_bytes()[:-40])
    refused("tiny-imagenet", tmp_path, str(picture), "broken picture")


# arrays


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


X, Y = np.zeros((10, 3)), np.arange(10) % 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": X}, "it holds a; expected are x_train"),
        ({"x": X}, "it holds x; expected are"),
        ({"x": X, "y": Y[:9]}, "10 images but 9 labels"),
        ({"x": X, "y": Y - 1}, "a label is -1"),
        ({"x": X, "y": Y * 10**9}, "1000000000"),
        ({"x": X * np.nan, "y": Y}, "not finite"),
        ({"x": X + 1e300, "y": Y}, "not finite"),
        ({"x": X, "y": Y + np.inf}, "not finite"),
        ({"x": X, "y": Y.astype(complex)}, "numbers were expected"),
        ({"x": X, "y": Y.astype(str)}, "targets should be a class or numbers"),
        ({"x": X.astype(str), "y": Y}, "inputs should be numbers"),
        ({"x": X[:, 0], "y": Y}, "row by row"),
        ({"x": X[:0], "y": Y[:0]}, "of shape (0,"),
        ({"x": X[:4], "y": Y[:4]}, "every 5th row"),
        ({"x": X, "y": Y, "classes": ["one"]}, "name the 2 classes"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :2], "y_test": Y}, "another shape"),
        ({"x": X, "y": Y.reshape(5, 2)}, "targets should be"),
    ],
)
def test_arrays_that_make_no_data_set(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    path = saved(tmp_path / "a.npz", **arrays)
    refused(f"npz:{path}", tmp_path, "a.npz", words)


def test_an_npz_with_a_pickle_in_it_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    objects = np.array([Runs(os.mkdir, str(trace))], object)
    path = saved(tmp_path / "a.npz", x=objects, y=Y)
    refused(f"npz:{path}", tmp_path, "x.npy", "Object arrays cannot be loaded")
    assert not trace.exists()


def zip_of(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in entries.items():
            archive.writestr(f"{name}.npy", body)
    return path


def npy_bytes(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of an array of bytes, whatever follows."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return out.getvalue()


def test_a_zip_bomb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy_header((30_000_000, 4)))
        for _ in range(30):
            file.write(bytes(4_000_000))
    assert path.stat().st_size < 600_000
    refused(f"npz:{path}", tmp_path, "bomb.npz", "120,000,128 bytes and stores", "bomb")
    with pytest.raises(DataError, match="the limit is 1,000,000"):
        npz.read(path, most=1_000_000)


def test_a_header_that_declares_what_is_not_there(tmp_path: Path) -> None:
    small = npy_bytes(np.zeros((10, 3)))
    for shape in ((11, 3), (99999999999, 3), (9, 3), (-10, -3)):
        path = zip_of(tmp_path / "a.npz", x=npy_header(shape) + bytes(30), y=npy_bytes(Y))
        refused(f"npz:{path}", tmp_path, "x.npy")
    for body in (b"", small[:5], small[:50], small[:-1], b"\x93NUMPY\x09\x00" + small[8:], b"PK" + small):
        path = zip_of(tmp_path / "a.npz", x=body, y=npy_bytes(Y))
        refused(f"npz:{path}", tmp_path, "x.npy")


def test_an_entry_that_begins_before_its_file(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.npz", x=npy_bytes(X), y=npy_bytes(Y))
    body = bytearray(path.read_bytes())
    end = body.rindex(b"PK\x05\x06")
    (directory,) = struct.unpack_from("<I", body, end + 16)
    struct.pack_into("<I", body, end + 16, directory + 1000)  # where the list of entries is said to begin
    path.write_bytes(body)
    refused(f"npz:{path}", tmp_path, "a.npz")
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(path, tmp_path / "into")


def test_an_entry_that_lies_about_its_size(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.npz", x=npy_bytes(X), y=npy_bytes(Y))
    whole = path.read_bytes()
    size = struct.pack("<I", len(npy_bytes(X)))
    for lie in (struct.pack("<I", 2**32 - 2), struct.pack("<I", 100), struct.pack("<I", len(npy_bytes(X)) + 8)):
        path.write_bytes(whole.replace(size, lie))
        refused(f"npz:{path}", tmp_path, "a.npz")


def test_damaged_cifar_c(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    write_cifar_c(folder)
    path = folder / "fog.npy"
    whole = path.read_bytes()
    trace = tmp_path / "trace"
    objects = np.array([Runs(os.mkdir, str(trace))], object)
    for body, words in (
        (whole[:-1], "mmap length is greater than file size"),
        (whole + b"x", "declares 61440 bytes"),
        (whole[:100], "EOF"),
        (npy_bytes(random_bytes(20, 32, 32)), r"\(rows, 32, 32, 3\)"),
        (npy_bytes(random_bytes(20, 32, 32, 3).astype(float)), "float64"),
        (npy_bytes(random_bytes(15, 32, 32, 3)), "15 images but 20 labels"),
        (npy_bytes(objects), "Python objects"),
        (b"", "magic string"),
    ):
        path.write_bytes(body)
        with pytest.raises(DataError, match=rf"fog\.npy: .*{words}"):
            cifar_c.read(tmp_path, "cifar10", "fog", 1)
    assert not trace.exists()
    path.write_bytes(whole)
    for labels, words in ((np.full(20, 10), "a label is 10"), (np.zeros((20, 1), int), "one row"), (X, "one row")):
        np.save(folder / "labels.npy", labels)
        with pytest.raises(DataError, match=rf"labels\.npy: .*{words}"):
            cifar_c.read(tmp_path, "cifar10", "fog", 1)
    np.save(folder / "labels.npy", np.zeros(19, int))
    np.save(path, random_bytes(19, 32, 32, 3))
    with pytest.raises(DataError, match="19 rows are not 5 severities"):
        cifar_c.read(tmp_path, "cifar10", "fog", 1)


# archives


def tar_of(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """A tar of files (bytes) and links (where to)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, body in members:
            member = tarfile.TarInfo(name)
            if isinstance(body, str):
                member.type, member.linkname = (tarfile.SYMTYPE if body[0] == "s" else tarfile.LNKTYPE), body[1:]
                tar.addfile(member)
            else:
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    return path


HOSTILE = ["../out", "a/../../out", "/tmp/steppe-was-here", "a\\..\\..\\out", "C:\\out", "..", "C:out"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_do_not_climb_out(tmp_path: Path, name: str, kind: str) -> None:
    """Such names are refused, or lead to a file within the folder."""
    archive = tmp_path / f"a.{kind}"
    if kind == "tar":
        tar_of(archive, ("fine", b"1"), (name, b"2"))
    else:
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("fine", b"1")
            packed.writestr(name, b"2")
    into = tmp_path / "into" / "here"
    found = result(unpack, archive, into)
    assert into.exists() == (not isinstance(found, DataError))
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(into)]
    assert outside == [archive]
    assert not Path("/tmp/steppe-was-here").exists()


def test_archives_make_no_links_out_and_no_devices(tmp_path: Path) -> None:
    archive, into = tmp_path / "a", tmp_path / "into"
    for link in ("s/etc", "s..", "h/etc/passwd"):
        tar_of(archive, ("fine", b"1"), ("link", link), ("link/passwd", b"2"))
        with pytest.raises(DataError, match="link"):
            unpack(archive, into)
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo("fifo")
        member.type = tarfile.FIFOTYPE
        tar.addfile(member)
    with pytest.raises(DataError, match="'fifo' is a special file"):
        unpack(archive, into)
    assert not into.exists()
    with zipfile.ZipFile(archive, "w") as packed:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = 0o120777 << 16
        packed.writestr(entry, "/etc")
    unpack(archive, into)
    assert not (into / "link").is_symlink()


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_have_a_limit_and_an_end(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"a.{kind}"
    if kind == "tar":
        tar_of(archive, ("d/one", bytes(600)), ("d/two", bytes(600)))
    else:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("d/one", bytes(600))
            packed.writestr("d/two", bytes(600))
    unpack(archive, tmp_path / "all", most=1200)
    assert [(tmp_path / "all" / "d" / n).read_bytes() for n in ("one", "two")] == [bytes(600)] * 2
    with pytest.raises(DataError, match="more than 1,199 bytes"):
        unpack(archive, tmp_path / "into", most=1199)
    archive.write_bytes(archive.read_bytes()[:-70])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "into")
    archive.write_bytes(b"neither")
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "into")
    assert not (tmp_path / "into").exists()


# anything at all


def result(function: Callable[..., object], *given: object) -> object:
    """What a function returns, or the DataError that it raises; any other exception goes on."""
    try:
        return function(*given)
    except DataError as error:
        return error


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """One tiny valid set of each kind, by the name under which it loads."""
    root = tmp_path_factory.mktemp("valid")
    write_mnist(root / "raw", (3, 2))
    write_mnist(root / "zipped", (3, 2), zipped=True)
    write_cifar_binary(root / "bin", "cifar10", rows=1)
    write_cifar_python(root / "py", "cifar100", rows=1)
    write_svhn(root / "mat", rows=2)
    published = pytest.MonkeyPatch()
    publish(published, "svhn", root / "mat")
    publish(published, "cifar100", root / "py")
    write_tiny_imagenet(root / "tiny")
    write_classes(root / "pictures")
    (root / "npz").mkdir()
    saved(root / "npz" / "a.npz", x=X, y=Y)
    np.savez_compressed(root / "npz" / "b.npz", x_train=random_bytes(5, 4, 4), y_train=Y[:5])
    yield {
        "mnist": root / "raw",
        "fashion-mnist": root / "zipped",
        "cifar10": root / "bin",
        "cifar100": root / "py",
        "svhn": root / "mat",
        "tiny-imagenet": root / "tiny",
        "folder": root / "pictures",
        "npz": root / "npz",
    }
    published.undo()


@pytest.mark.parametrize(
    "name",
    ["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet", "folder", "npz"],
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_data_or_a_clear_error(layouts: dict[str, Path], name: str, data: st.DataObject) -> None:
    """A file cut short, or with some bytes changed: a data set or a DataError that names a file, and nothing else."""
    with tempfile.TemporaryDirectory() as scratch:
        root = shutil.copytree(layouts[name], Path(scratch) / "damaged")
        path = data.draw(st.sampled_from(sorted(p for p in root.rglob("*") if p.is_file())), "file")
        body = bytearray(path.read_bytes())
        if data.draw(st.booleans(), "cut"):
            body = body[: data.draw(st.integers(0, len(body)), "length")]
        else:
            early = st.integers(0, min(len(body), 400) - 1) | st.integers(0, len(body) - 1)  # headers are early
            changes = st.lists(st.tuples(early, st.integers(0, 255)), min_size=1, max_size=4)
            for at, value in data.draw(changes, "bytes"):
                body[at] = value
        path.write_bytes(body)
        before = sorted(root.rglob("*"))
        wanted = {"folder": f"folder:{root}", "npz": f"npz:{path}"}.get(name, name)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*published set has")
            found = result(load, wanted, root)
        assert isinstance(found, Splits) or str(root) in str(found)
        assert sorted(root.rglob("*")) == before


def test_the_memory_that_damage_takes_is_small(tmp_path: Path) -> None:
    """Headers that declare gigabytes do not make us ask for them."""
    write_mnist(tmp_path / "m", zipped=True)
    huge = b"\x00\x00\x08\x03" + struct.pack(">3I", 2**16, 2**16, 3)
    (tmp_path / "m" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(huge))
    path = zip_of(tmp_path / "a.npz", x=npy_header((2**34,)), y=npy_bytes(Y))
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, limit[1]))
    try:
        refused("mnist", tmp_path / "m", "bomb")
        refused(f"npz:{path}", tmp_path, "x.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
