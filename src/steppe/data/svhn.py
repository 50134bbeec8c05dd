"""SVHN, the cropped digits: two .mat files."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .catalogue import CATALOGUE
from .damage import DataError, affordable
from .dataset import Dataset, Splits
from .labels import class_numbers, paired


def read(root: Path | str, name: str = "svhn") -> Splits:
    """SVHN from under a root."""
    folder = CATALOGUE[name].find(root)
    return Splits(*(part(folder / f"{which}_32x32.mat") for which in ("train", "test")))


def part(path: Path) -> Dataset:
    """The images and labels of one file: X is (32, 32, 3, rows), y has 1 to 10, and 10 stands for the digit 0."""
    shape = _declared(path)
    held = _by_scipy(path, "loadmat", variable_names=["X", "y"])
    pixels, labels = np.asarray(held["X"]), np.asarray(held["y"])
    if pixels.dtype != np.uint8 or pixels.shape != shape:
        raise DataError(f"{path}: X should be bytes of shape {shape}, and is {pixels.dtype} of shape {pixels.shape}")
    labels = labels.reshape(-1)
    if labels.dtype.kind not in "iuf" or not np.isin(labels, range(1, 11)).all():
        raise DataError(f"{path}: a label is not one of 1 to 10")
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    paired(path, len(images), len(labels))
    return Dataset("svhn", torch.from_numpy(images), class_numbers(path, labels % 10, 10), tuple("0123456789"))


def _declared(path: Path) -> tuple[int, int, int, int]:
    """The shape of X, from the headers alone: what is too large is not read."""
    held = {str(name): (shape, kind) for name, shape, kind in _by_scipy(path, "whosmat")}
    for name in ("X", "y"):
        if name not in held:
            raise DataError(f"{path}: it has no variable {name!r}, only {', '.join(sorted(held)) or 'nothing'}")
    (*image, rows), kind = held["X"]
    if image != [32, 32, 3] or rows < 1 or kind != "uint8":
        raise DataError(f"{path}: X should be bytes of shape (32, 32, 3, rows), and is {kind} of shape {held['X'][0]}")
    if prod(held["y"][0]) != rows:
        raise DataError(f"{path}: {rows} images but labels of shape {held['y'][0]}")
    affordable(path, 32 * 32 * 3 * rows, path.stat().st_size)
    return (32, 32, 3, int(rows))


def _by_scipy(path: Path, function: str, **options: Any) -> Any:
    from scipy import io

    try:
        return getattr(io, function)(path, **options)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # scipy answers damaged files with whatever happens to go wrong
        raise DataError(f"{path}: not a readable .mat file (version 5 to 7.2): {error}") from error
