"""Data sets in memory, as all readers return them, and the error for files that hold none; imports torch late."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

# Data sets are held in memory: more than this is a mistake or an attack. TinyImageNet is 1.2 GiB.
MOST_BYTES = 16 * 2**30


@dataclass(frozen=True)
class Dataset:
    """Inputs and targets, sample by sample; "rows" are samples in the names.

    Attributes
    ----------
    name
        For messages.
    inputs
        Images as bytes (rows, channels, height, width), floats of any shape, or integers such as token ids. Inputs of
        several names are stacked, (rows, names, ...).
    targets
        Class numbers as int64, or numbers to predict.
    classes
        Their names; empty where targets are numbers to predict.
    fields
        The names of stacked inputs, such as input_ids and attention_mask, by which a model takes them; empty for one
        input without a name.

    Examples
    --------
    >>> images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    >>> dataset = steppe.data.Dataset("mine", images, torch.tensor([0, 1, 0]), classes=("cat", "dog"))
    >>> len(dataset), dataset.is_images, dataset.rows(dataset.targets == 0).targets
    (3, True, tensor([0, 0]))

    """

    name: str
    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.inputs):
            raise ValueError(f"{self.name}: a data set needs at least one row")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{self.name}: {len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.inputs.shape[1:])) or "one number"
        targets = f"{len(self.classes)} classes" if self.classes else "numbers to predict"
        return f"Dataset({self.name!r}: {len(self):,} rows of {shape}, {targets})"

    def rows(self, which: Tensor | slice) -> Self:
        """Some of the rows, in the given order."""
        return replace(self, inputs=self.inputs[which], targets=self.targets[which])

    def to(self, device: torch.device | str) -> Self:
        """The same rows on a device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    @property
    def is_images(self) -> bool:
        import torch

        return self.inputs.dtype == torch.uint8 and self.inputs.ndim == 4


@dataclass(frozen=True)
class Splits:
    """The parts of a data set.

    Attributes
    ----------
    train, test
        Training and test rows.
    validation
        Rows for choosing settings.
    held_out
        Rows for methods with held-out passes.

    Examples
    --------
    >>> rows = steppe.data.Dataset("line", torch.arange(4.0)[:, None], torch.arange(4.0))
    >>> splits = steppe.data.Splits(train=rows.rows(slice(3)), test=rows.rows(slice(3, None)))
    >>> len(splits.train), len(splits.test), splits.validation
    (3, 1, None)

    """

    train: Dataset
    test: Dataset
    validation: Dataset | None = None
    held_out: Dataset | None = None

    @property
    def parts(self) -> dict[str, Dataset]:
        """The parts that there are, by name."""
        named = {"train": self.train, "test": self.test, "validation": self.validation, "held_out": self.held_out}
        return {name: rows for name, rows in named.items() if rows is not None}

    @cached_property
    def digest(self) -> str:
        """A digest that changes if any row does."""
        state = hashlib.blake2b(digest_size=16)
        for rows in self.parts.values():
            for t in (rows.inputs, rows.targets):
                state.update(f"{t.dtype}{tuple(t.shape)}".encode())
                state.update(t.cpu().contiguous().numpy().data)
        return state.hexdigest()


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
