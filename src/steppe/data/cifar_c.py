"""CIFAR-10-C and CIFAR-100-C: the test images under 19 corruptions, in .npy files of five severities each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._util.names import unknown
from .arrays import map_npy
from .catalogue import DATASETS
from .dataset import DataError, Dataset, check_pairs, class_numbers

SETS = ("cifar10", "cifar100")
SEVERITIES = 5  # one after the other in each file: README.txt of the archive


def read(root: Path | str, data: str, corruption: str, severity: int) -> Dataset:
    """Read the test images of a data set under one corruption at one severity.

    Parameters
    ----------
    root
        The folder that holds the data sets, or the folder of the .npy files.
    data
        `cifar10` or `cifar100`.
    corruption
        The name of its file, without the suffix.
    severity
        1 to 5.

    """
    folder = find(root, data)
    path = folder / f"{corruption}.npy"
    if corruption not in (names := corruptions(folder)):
        raise ValueError(unknown(f"corruption in {folder}", corruption, names))
    images = map_npy(path)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images.shape) != 4:
        raise DataError(f"{path}: images should be bytes (rows, 32, 32, 3), and are {images.dtype} {images.shape}")
    targets = labels(folder, data, severity)
    check_pairs(path, len(images), len(map_npy(folder / "labels.npy")))
    pixels = np.ascontiguousarray(images[_rows(path, len(images), severity)].transpose(0, 3, 1, 2))
    classes = tuple(map(str, range(DATASETS[data].classes)))
    return Dataset(f"{data}-c/{corruption}-{severity}", torch.from_numpy(pixels), targets, classes)


def labels(folder: Path, data: str, severity: int) -> Tensor:
    """Read the class numbers of the images of one severity."""
    path = folder / "labels.npy"
    numbers = map_npy(path)
    if len(numbers.shape) != 1 or numbers.dtype.kind not in "iu" or not numbers.shape[0]:
        raise DataError(f"{path}: labels should be one row of whole numbers, and are {numbers.dtype} {numbers.shape}")
    return class_numbers(path, np.array(numbers[_rows(path, len(numbers), severity)]), DATASETS[data].classes)


def _rows(path: Path, count: int, severity: int) -> slice:
    if severity not in range(1, SEVERITIES + 1):
        raise ValueError(f"severity is 1 to {SEVERITIES}, not {severity}")
    if count % SEVERITIES:
        raise DataError(f"{path}: {count} rows are not {SEVERITIES} severities of equal length")
    each = count // SEVERITIES
    return slice(each * (severity - 1), each * severity)


def find(root: Path | str, data: str) -> Path:
    """Return the folder of the corrupted images of a data set."""
    if data not in SETS:
        raise ValueError(unknown("corrupted version of the data set", data, SETS))
    root, official = Path(root), f"{data.upper().replace('CIFAR', 'CIFAR-')}-C"
    for folder in (root / official, root):
        if (folder / "labels.npy").is_file():
            return folder
    raise FileNotFoundError(
        f"{official} is not under {root}: there is no {root / official / 'labels.npy'}. "
        f"`steppe data get {data}-c` downloads it (2.9 GB)."
    )


def corruptions(folder: Path) -> list[str]:
    """Return the corruptions whose files are in a folder."""
    return sorted(p.stem for p in folder.glob("*.npy") if p.stem != "labels")
