"""SVHN, the cropped digits: two .mat files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .catalogue import CATALOGUE
from .dataset import Dataset, Splits
from .errors import DataError, class_numbers


def read(root: Path | str, name: str = "svhn") -> Splits:
    """Read SVHN from under a root."""
    folder = CATALOGUE[name].find(root)
    return Splits(*(part(folder / f"{which}_32x32.mat") for which in ("train", "test")))


def part(path: Path) -> Dataset:
    """Read the images and labels of one file: X is (32, 32, 3, rows), y has 1 to 10, and 10 stands for the digit 0.

    Only the published files are read: scipy's reader kills the process on some damaged ones.
    """
    published = {file.name: file for file in CATALOGUE["svhn"].files}
    wrong = published[path.name].differs(path) if path.name in published else f"those are {', '.join(published)}"
    if wrong:
        raise DataError(f"{path}: not a file of SVHN as published: {wrong}. `steppe data get svhn` downloads them")
    from scipy.io import loadmat

    content = loadmat(path, variable_names=("X", "y"))
    images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    labels = class_numbers(path, content["y"].reshape(-1) % 10, 10)
    return Dataset("svhn", torch.from_numpy(images), labels, tuple("0123456789"))
