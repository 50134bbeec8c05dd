"""SVHN, the cropped digits: two .mat files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .catalogue import CATALOGUE
from .damage import DataError
from .dataset import Dataset, Splits
from .labels import class_numbers, paired
from .mat import arrays


def read(root: Path | str, name: str = "svhn") -> Splits:
    """SVHN from under a root."""
    folder = CATALOGUE[name].find(root)
    return Splits(*(part(folder / f"{which}_32x32.mat") for which in ("train", "test")))


def part(path: Path) -> Dataset:
    """The images and labels of one file: X is (32, 32, 3, rows), y has 1 to 10, and 10 stands for the digit 0."""
    pixels, labels = arrays(path, "X", "y")
    if pixels.dtype != np.uint8 or pixels.shape[:-1] != (32, 32, 3) or not pixels.size:
        raise DataError(
            f"{path}: X should be bytes of shape (32, 32, 3, rows), and is {pixels.dtype} of shape {pixels.shape}"
        )
    if not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{path}: a label is not one of 1 to 10")
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    paired(path, len(images), labels.size)
    return Dataset(
        "svhn", torch.from_numpy(images), class_numbers(path, labels.reshape(-1) % 10, 10), tuple("0123456789")
    )
