"""MNIST and Fashion-MNIST: IDX files, plain or gzipped."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .catalogue import CATALOGUE
from .dataset import Dataset, Splits
from .errors import DataError, check_pairs, check_size, class_numbers

CLASSES = {
    "mnist": tuple("0123456789"),
    # the table in the README of Fashion-MNIST
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
# Both sets have the same file names: the SHA-256 of the published test labels, unpacked, tells them apart
LABELS = {
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5": "mnist",
    "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9": "fashion-mnist",
}
UNSIGNED_BYTES = 8


def read(root: Path | str, name: str = "mnist") -> Splits:
    """Read MNIST or Fashion-MNIST from under a root."""
    folder = CATALOGUE[name].find(root)
    actual = identity(folder)
    if actual not in (None, name):
        raise DataError(f"{folder}: these are the files of {actual}, not of {name}")
    return Splits(_part(folder, "train", name), _part(folder, "t10k", name))


def identity(folder: Path) -> str | None:
    """Return which of the published sets these files are, or None."""
    labels = array(_file(folder, "t10k-labels-idx1-ubyte"))
    return LABELS.get(hashlib.sha256(labels.tobytes()).hexdigest())


def array(path: Path) -> NDArray[np.uint8]:
    """Read the array of bytes in an IDX file."""
    stored = path.stat().st_size
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:3] != bytes((0, 0, UNSIGNED_BYTES)) or not 1 <= head[3] <= 4:
                raise DataError(f"{path}: not an IDX file of bytes: it begins with {head.hex(' ') or 'nothing'}")
            axes = file.read(4 * head[3])
            if len(axes) < 4 * head[3]:
                raise DataError(f"{path}: it ends inside its header")
            shape = struct.unpack(f">{head[3]}I", axes)
            declared = prod(shape)
            held = stored - 4 - len(axes)
            if not zipped and held != declared:
                raise DataError(f"{path}: {shape} bytes are declared, {declared} in all, and the file holds {held}")
            check_size(path, declared, stored)
            body, more = file.read(declared), file.read(1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: its gzip stream is damaged: {error}") from error
    if len(body) != declared or more:
        raise DataError(f"{path}: {declared} bytes are declared, and the file holds {'more' if more else len(body)}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _part(folder: Path, part: str, name: str) -> Dataset:
    images_file, labels_file = (_file(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = array(images_file), array(labels_file)
    if images.ndim != 3 or not images.size:
        raise DataError(f"{images_file}: images should be (rows, height, width), and are {images.shape}")
    check_pairs(images_file, len(images), len(labels))
    classes = CLASSES[name]
    targets = class_numbers(labels_file, labels, len(classes))
    return Dataset(name, torch.from_numpy(images[:, None].copy()), targets, classes)


def _file(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"
