"""CIFAR-10 and CIFAR-100, in the binary and in the Python layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from . import unpickling
from .catalogue import CATALOGUE, CIFAR10_BATCHES
from .dataset import Dataset, Splits
from .errors import DataError, check_pairs, class_numbers

PIXELS = 3 * 32 * 32
TRAIN = {"cifar10": CIFAR10_BATCHES, "cifar100": ("train",)}
TEST = {"cifar10": ("test_batch",), "cifar100": ("test",)}
LABEL_BYTES = {"cifar10": 1, "cifar100": 2}  # CIFAR-100: one of 20 coarse classes, then one of 100 fine ones
LABEL_KEY = {"cifar10": "labels", "cifar100": "fine_labels"}
NAMES = {"cifar10": "batches.meta.txt", "cifar100": "fine_label_names.txt"}
NAMES_PICKLED = {"cifar10": ("batches.meta", "label_names"), "cifar100": ("meta", "fine_label_names")}


def read(root: Path | str, name: str = "cifar10") -> Splits:
    """Read CIFAR-10 or CIFAR-100 (its fine classes) from under a root."""
    folder = CATALOGUE[name].find(root)
    classes = _classes(folder, name)
    return Splits(*(_part(folder, files[name], name, classes) for files in (TRAIN, TEST)))


def _part(folder: Path, batches: tuple[str, ...], name: str, classes: tuple[str, ...]) -> Dataset:
    images, labels = [], []
    for batch in batches:
        binary = folder / f"{batch}.bin"
        read_one, path = (_binary, binary) if binary.is_file() else (_pickled, folder / batch)
        pixels, numbers = read_one(path, name)
        check_pairs(path, len(pixels), len(numbers))
        images.append(pixels)
        labels.append(class_numbers(path, numbers, len(classes)))
    inputs = torch.from_numpy(np.concatenate(images).reshape(-1, 3, 32, 32))
    return Dataset(name, inputs, torch.cat(labels), classes)


def _binary(path: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    before = LABEL_BYTES[name]
    size = path.stat().st_size
    if not size or size % (before + PIXELS):
        raise DataError(f"{path}: it has {size} bytes, and should have a multiple of {before + PIXELS}, one per record")
    records = np.fromfile(path, np.uint8).reshape(-1, before + PIXELS)
    return records[:, before:], records[:, before - 1]


def _pickled(path: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table = unpickling.table(path)
    pixels, labels = (_entry(path, table, key) for key in ("data", LABEL_KEY[name]))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"{path}: 'data' should be an array of bytes with {PIXELS} columns")
    valid = isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels)
    if not valid:
        raise DataError(f"{path}: {LABEL_KEY[name]!r} should be a list of class numbers")
    return pixels, np.array(labels, np.int64)


def _classes(folder: Path, name: str) -> tuple[str, ...]:
    count = CATALOGUE[name].classes
    listed, (pickled, key) = folder / NAMES[name], NAMES_PICKLED[name]
    names: object = [str(number) for number in range(count)]  # where the list of names is missing
    if listed.is_file():
        names = listed.read_text(encoding="latin-1").split()
    elif (folder / pickled).is_file():
        listed = folder / pickled
        names = _entry(listed, unpickling.table(listed), key)
    if not isinstance(names, list) or len(names) != count or not all(isinstance(n, (str, bytes)) for n in names):
        raise DataError(f"{listed}: it should hold the names of {count} classes")
    return tuple(n.decode("latin-1") if isinstance(n, bytes) else n for n in names)


def _entry(path: Path, table: dict[str, object], key: str) -> object:
    if key not in table:
        raise DataError(f"{path}: it has no {key!r}, only {', '.join(sorted(table)) or 'nothing'}")
    return table[key]
