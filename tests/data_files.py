"""Writers of tiny data sets in the published layouts, after their descriptions and not after our readers."""

from __future__ import annotations

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from steppe.data import DATASETS

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def random_bytes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    """http://yann.lecun.com/exdb/mnist: 0, 0, type 8, number of axes, each axis big-endian, then the bytes."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", axis) for axis in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, rows: tuple[int, int] = (6, 4), zipped: bool = False) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for seed, (part, count) in enumerate(zip(("train", "t10k"), rows, strict=True)):
        held[f"{part}-images-idx3-ubyte"] = random_bytes(count, 28, 28, seed=seed)
        held[f"{part}-labels-idx1-ubyte"] = np.arange(count, dtype=np.uint8) % 10
    for name, array in held.items():
        body = idx_bytes(array)
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(body) if zipped else body)
    return held


def cifar_parts(name: str) -> list[str]:
    return [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if name == "cifar10" else ["train", "test"]


def write_cifar_binary(folder: Path, name: str, rows: int = 3) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """https://www.cs.toronto.edu/~kriz/cifar.html: <1 x label><3072 x pixel>; CIFAR-100 <coarse><fine><pixels>."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for seed, part in enumerate(cifar_parts(name)):
        pixels = random_bytes(rows, 3072, seed=seed)
        labels = np.random.default_rng(seed).permutation(rows) % (10 if name == "cifar10" else 100)
        with (folder / f"{part}.bin").open("wb") as file:
            for row, label in zip(pixels, labels, strict=True):
                file.write(bytes([label]) if name == "cifar10" else bytes([label // 5, label]))
                file.write(row.tobytes())
        held[part] = (pixels, labels)
    if name == "cifar10":
        (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_NAMES) + "\n\n")
    return held


def _py2_string(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def python2_pickle(table: dict[bytes, object]) -> bytes:
    """What Python 2's cPickle wrote in protocol 2: strings as SHORT_BINSTRING and BINSTRING, an array by its parts."""
    out, memo = [b"\x80\x02}q\x00("], 1

    def put() -> bytes:
        nonlocal memo
        memo += 1
        return b"r" + struct.pack("<I", memo)

    for key, value in table.items():
        out += [_py2_string(key), put()]
        if isinstance(value, bytes):
            out += [_py2_string(value), put()]
        elif isinstance(value, list):
            out += [b"]", put(), b"("]
            out += [b"K" + bytes([x]) if isinstance(x, int) else _py2_string(x) for x in value]
            out += [b"e"]
        else:
            array = np.asarray(value)
            axes = b"".join(b"J" + struct.pack("<i", axis) for axis in array.shape)
            out += [b"cnumpy.core.multiarray\n_reconstruct\n", put(), b"cnumpy\nndarray\n", put(), b"K\x00\x85", put()]
            out += [b"U\x01b", put(), b"\x87", put(), b"R", put(), b"(K\x01", b"(" + axes + b"t", put()]
            out += [b"cnumpy\ndtype\n", put(), b"U\x02u1", put(), b"K\x00K\x01\x87", put(), b"R", put()]
            out += [b"(K\x03U\x01|", put(), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t", put(), b"b\x89"]
            out += [b"T" + struct.pack("<i", array.nbytes) + array.tobytes(), put(), b"t", put(), b"b"]
    return b"".join([*out, b"u."])


def write_cifar_python(folder: Path, name: str, rows: int = 3) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    fine = b"labels" if name == "cifar10" else b"fine_labels"
    for seed, part in enumerate(cifar_parts(name)):
        pixels = random_bytes(rows, 3072, seed=seed)
        labels = np.random.default_rng(seed).integers(0, 10 if name == "cifar10" else 100, rows)
        table = {b"batch_label": b"training batch 1 of 5", fine: [int(x) for x in labels], b"data": pixels}
        if name == "cifar100":
            table[b"coarse_labels"] = [int(x) // 5 for x in labels]
        table[b"filenames"] = [f"{i}.png".encode() for i in range(rows)]
        (folder / part).write_bytes(python2_pickle(table))
        held[part] = (pixels, labels)
    names = CIFAR10_NAMES if name == "cifar10" else [f"fine{i}" for i in range(100)]
    meta, key = ("batches.meta", b"label_names") if name == "cifar10" else ("meta", b"fine_label_names")
    (folder / meta).write_bytes(python2_pickle({key: [n.encode() for n in names]}))
    return held


def write_svhn(folder: Path, rows: int = 11, compress: bool = True) -> np.ndarray:
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    pixels = random_bytes(32, 32, 3, rows)
    labels = (np.arange(rows, dtype=np.uint8) % 10 + 1)[:, None]
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": pixels, "y": labels}, do_compression=compress)
    return pixels


PUBLISHED = {name: one for name, one in DATASETS.items() if one.layouts}


def declare(monkeypatch: pytest.MonkeyPatch, name: str, **facts: Any) -> None:
    """Replaces what the registration of a data set says."""
    monkeypatch.setitem(DATASETS._parts, name, replace(DATASETS[name], **facts))


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> None:
    """Makes the files of a folder those whose digests are published: of .mat files and pickles no others are read."""
    one = DATASETS[name]
    known = {*one.members, *(Path(file.place).name for file in one.files)}
    found = [path for path in folder.rglob("*") if path.name in known and path.is_file()]
    members = {path.name: f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in found}
    declare(monkeypatch, name, members=members)


def write_picture(
    path: Path, size: tuple[int, int] = (8, 6), colour: object = (200, 30, 60), mode: str = "RGB"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def write_classes(folder: Path, classes: str = "ab", each: int = 5, **picture: object) -> None:
    for number, name in enumerate(classes):
        for i in range(each):
            colour = (40 * number, 10 * i, 7)
            write_picture(folder / name / f"{i}.png", **{"colour": colour, **picture})


def write_tiny_imagenet(folder: Path, layout: str = "annotated", each: int = 2) -> None:
    classes = ["n01443537", "n01629819", "n01641577"]
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(reversed(classes)) + "\n")
    lines = []
    for number, name in enumerate(classes):
        for i in range(each):
            write_picture(folder / "train" / name / "images" / f"{name}_{i}.JPEG", (64, 64), (60 * number, 90, 20))
        (folder / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
        place = {"annotated": Path("images"), "classes": Path(name), "nested": Path(name) / "images"}[layout]
        write_picture(folder / "val" / place / f"val_{2 - number}.JPEG", (64, 64), (60 * number, 90, 20))
        lines.append(f"val_{2 - number}.JPEG\t{name}\t0\t32\t44\t62\n")
    if layout == "annotated":
        (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def write_cifar_c(folder: Path, each: int = 4) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    held = {name: random_bytes(5 * each, 32, 32, 3, seed=i) for i, name in enumerate(("fog", "gaussian_noise"))}
    for name, array in held.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "labels.npy", np.tile(np.arange(each, dtype=np.uint8), 5))
    return held


def write_flowers(folder: Path) -> dict[int, int]:
    """https://www.robots.ox.ac.uk/~vgg/data/flowers/102: labels of all pictures in a row, and three lists."""
    from scipy.io import savemat

    labels = {1: 77, 2: 1, 3: 77, 4: 102, 5: 1}
    for number, label in labels.items():
        write_picture(folder / "jpg" / f"image_{number:05d}.jpg", (40 + number, 30), (label, 2 * label, 10))
    savemat(folder / "imagelabels.mat", {"labels": np.array([list(labels.values())], np.uint8)}, do_compression=True)
    parts = {"trnid": [3, 1], "valid": [4], "tstid": [5, 2]}
    savemat(folder / "setid.mat", {name: np.array([rows], np.uint16) for name, rows in parts.items()})
    return labels


def write_cars(folder: Path) -> None:
    """The devkit: a cell of names, and structs with a box, a class from 1 and the name of a file."""
    from scipy.io import savemat

    kind = [(name, object) for name in ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")]

    def annotations(labels: list[int]) -> np.ndarray:
        rows = [(39, 116, 569, 375, label, f"{i:05d}.jpg") for i, label in enumerate(labels, start=1)]
        return np.array(rows, dtype=kind)[None]

    (folder / "devkit").mkdir(parents=True)
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C/V Cargo Van"], object)[None]
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    for part, path, labels in (
        ("cars_train", folder / "devkit" / "cars_train_annos.mat", [3, 1, 2]),
        ("cars_test", folder / "cars_test_annos_withlabels.mat", [2, 3]),
    ):
        savemat(path, {"annotations": annotations(labels)})
        for i, label in enumerate(labels, start=1):
            write_picture(folder / part / f"{i:05d}.jpg", (30, 50), (80 * label, 0, 0))


def write_aircraft(folder: Path) -> None:
    variants = ["707-320", "727-200", "Boeing 717", "Yak-42"]
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "variants.txt").write_text("\n".join(variants) + "\n")
    for part, rows in {"trainval": {"1025794": 0, "0000001": 3, "0000002": 2}, "test": {"0000003": 2}}.items():
        (data / f"images_variant_{part}.txt").write_text("".join(f"{p} {variants[v]}\n" for p, v in rows.items()))
        for picture, variant in rows.items():
            write_picture(data / "images" / f"{picture}.jpg", (60, 40), (60 * variant, 0, 0))


def write_pets(folder: Path) -> None:
    (folder / "annotations").mkdir(parents=True)
    rows = {
        "trainval": ["Abyssinian_100 1 1 1", "yorkshire_terrier_9 3 2 2", "american_bulldog_1 2 2 1"],
        "test": ["Abyssinian_2 1 1 1", "american_bulldog_20 2 2 1"],
    }
    for part, lines in rows.items():
        (folder / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            write_picture(folder / "images" / f"{line.split()[0]}.jpg", (20, 30), (80 * int(line.split()[1]), 0, 0))


WRITERS_OF_PICTURES = {
    "flowers102": ("flowers-102", write_flowers),
    "stanford-cars": ("stanford_cars", write_cars),
    "fgvc-aircraft": ("fgvc-aircraft-2013b", write_aircraft),
    "oxford-pets": ("oxford-iiit-pet", write_pets),
}


def write_tiny_imagenet_c(folder: Path, names: tuple[str, ...] = ("fog", "gaussian_noise")) -> None:
    """Tiny-ImageNet-C: corruption/severity/class/picture, with all classes of `write_tiny_imagenet`."""
    for i, name in enumerate(names):
        for severity in range(1, 6):
            for number, label in enumerate(("n01443537", "n01629819", "n01641577")):
                path = folder / name / str(severity) / label / f"val_{number}.JPEG"
                write_picture(path, (64, 64), (60 * number, 40 * severity, 90 * i))
