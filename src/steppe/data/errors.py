"""Errors in data files, limits on their sizes, and checks of labels; importing this module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

# Data sets are held in memory: more than this is a mistake or an attack. TinyImageNet is 1.2 GiB.
MOST_BYTES = 16 * 2**30
# Photographs compress twofold, drawn digits tenfold, a decompression bomb a thousandfold. Small files may be empty.
MOST_RATIO = 200
SMALL = 64 * 2**20


class DataError(ValueError):
    """A file or folder that cannot be read as data; the message names it and says what is wrong.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "rows.npz")
    ...     _ = file.write_bytes(b"")
    ...     try:
    ...         steppe.data.load(f"npz:{file}")
    ...     except steppe.data.DataError as error:
    ...         print(str(error).replace(folder, "FOLDER"))
    FOLDER/rows.npz: not readable arrays of numbers: BadZipFile: File is not a zip file

    """


def check_size(path: Path | str, declared: int, stored: int, most: int = MOST_BYTES) -> None:
    """Raise DataError, before anything is read, if a file declares more bytes than a data set has."""
    if declared > most:
        raise DataError(f"{path}: it declares {declared:,} bytes, and the limit is {most:,}; it is damaged, or a bomb")
    if declared > SMALL and declared > MOST_RATIO * stored:
        raise DataError(
            f"{path}: it declares {declared:,} bytes and stores {stored:,}, more than {MOST_RATIO} to 1; it is a bomb"
        )


def class_numbers(path: Path | str, labels: NDArray[np.generic], classes: int) -> Tensor:
    """Return labels as int64; raise DataError if one is not a class number."""
    import torch

    if labels.ndim != 1 or not len(labels):
        raise DataError(f"{path}: labels should be one row of numbers, and have the shape {labels.shape}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise DataError(f"{path}: a label is {wrong}, and the {classes} classes are 0 to {classes - 1}")
    return torch.from_numpy(labels.astype("int64"))


def check_pairs(path: Path | str, inputs: int, labels: int) -> None:
    """Raise DataError unless there are as many labels as images."""
    if inputs != labels:
        raise DataError(f"{path}: {inputs} images but {labels} labels; the files do not belong together")
