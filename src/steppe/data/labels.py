"""Labels that are looked at before they are believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .damage import DataError


def class_numbers(path: Path | str, labels: NDArray[np.generic], classes: int) -> Tensor:
    """Labels as int64, after a look that each is a class."""
    if labels.ndim != 1 or not len(labels):
        raise DataError(f"{path}: labels should be one row of numbers, and have the shape {labels.shape}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(f"{path}: a label is {wrong}, and the {classes} classes are 0 to {classes - 1}")
    return torch.from_numpy(labels.astype(np.int64))


def paired(path: Path | str, inputs: int, labels: int) -> None:
    """Refuses images and labels that do not belong together."""
    if inputs != labels:
        raise DataError(f"{path}: {inputs} images but {labels} labels; the files do not belong together")
