"""Any .npz of arrays: inputs and targets, in parts or whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .damage import MOST_BYTES, DataError
from .dataset import Dataset, Splits
from .labels import class_numbers, paired
from .npy import arrays

INPUTS = ("x", "inputs", "images", "data")
TARGETS = ("y", "targets", "labels")
PARTS = {"train": ("train",), "test": ("test",), "validation": ("val", "valid", "validation")}
CLASSES = "classes"  # names, if the file has them
EVERY = 5  # of a file without a test part, every fifth row tests
MOST_CLASSES = 100_000
NUMBERS = "biuf"  # kinds of dtypes


def read(path: Path | str, most: int = MOST_BYTES) -> Splits:
    """Splits from arrays such as x_train, y_train, x_test, y_test, or train_images, train_labels, or just x and y.

    Bytes of three or four axes are images, channels first or last; other inputs become float32. Whole numbers as
    targets are classes, other numbers are to be predicted. Nothing is unpickled; more than `most` bytes are refused.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    held = _arrays(path, most)
    names = {part: pair for part, words in PARTS.items() if (pair := _pair(held, words))}
    if "train" not in names:
        names = {"train": pair} if (pair := _pair(held, ())) else {}
    if not names:
        raise DataError(
            f"{path}: it holds {', '.join(sorted(held)) or 'nothing'}; wanted are x_train, y_train, x_test, y_test, "
            "or x and y (also inputs or images, targets or labels)"
        )
    classes, targets = _targets(path, {part: (y, held[y]) for part, (_, y) in names.items()})
    if classes and CLASSES in held:
        classes = _named(path, held[CLASSES], len(classes))
    sets = {}
    for part, (x, _) in names.items():
        inputs = _inputs(f"{path}, {x}", held[x])
        paired(f"{path}, {x}", len(inputs), len(targets[part]))
        sets[part] = Dataset(path.stem, inputs, targets[part], classes)
        if inputs.shape[1:] != sets["train"].inputs.shape[1:]:
            raise DataError(f"{path}, {x}: its rows have another shape than those for training")
    return _splits(path, sets)


def _splits(path: Path, sets: dict[str, Dataset]) -> Splits:
    if "test" in sets:
        return Splits(sets["train"], sets["test"], validation=sets.get("validation"))
    if "validation" in sets:
        return Splits(sets["train"], sets["validation"])
    tests = torch.arange(len(sets["train"])) % EVERY == EVERY - 1
    if not tests.any():
        raise DataError(f"{path}: every {EVERY}th row is for testing, and there are only {len(tests)}")
    return Splits(sets["train"].rows(~tests), sets["train"].rows(tests))


def _arrays(path: Path, most: int) -> dict[str, NDArray[Any]]:
    found = arrays(path, most)
    for name, array in found.items():
        if array.dtype.kind not in NUMBERS + "U":
            raise DataError(f"{path}, {name}: it holds {array.dtype}, and numbers were expected")
    return found


def _pair(arrays: Iterable[str], parts: tuple[str, ...]) -> tuple[str, str] | None:
    """The names under which the inputs and targets of a part are there; of the whole, where no part is given."""
    found = []
    for words in (INPUTS, TARGETS):
        both = [*words, *map(str.upper, words)]
        spellings = [s for p in parts for w in both for s in (f"{w}_{p}", f"{p}_{w}")] or both
        found += [name for name in spellings if name in arrays][:1]
    return (found[0], found[1]) if len(found) == 2 else None


def _inputs(where: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in NUMBERS or array.ndim < 2 or not array.size:
        raise DataError(f"{where}: inputs should be numbers, row by row, and are {array.dtype} of shape {array.shape}")
    if array.dtype == np.uint8 and array.ndim == 3:
        return torch.from_numpy(array[:, None].copy())
    if array.dtype == np.uint8 and array.ndim == 4:
        channels_last = array.shape[3] in (1, 3) and array.shape[1] not in (1, 3)
        return torch.from_numpy(np.array(array.transpose(0, 3, 1, 2) if channels_last else array, order="C"))
    return _finite(where, array)


def _targets(path: Path, given: dict[str, tuple[str, NDArray[Any]]]) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    columns = {}
    for part, (name, array) in given.items():
        columns[part] = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind in "biu" else array
        axes = 2 if array.dtype.kind == "f" else 1
        if array.dtype.kind not in NUMBERS or not array.size or not 1 <= columns[part].ndim <= axes:
            wrong = f"{array.dtype} of shape {array.shape}"
            raise DataError(f"{path}, {name}: targets should be a class or numbers for each row, and are {wrong}")
    if any(column.dtype.kind == "f" for column in columns.values()):
        return (), {part: _finite(f"{path}, {given[part][0]}", column) for part, column in columns.items()}
    count = 1 + max(int(column.max()) for column in columns.values())
    if count > MOST_CLASSES:
        raise DataError(f"{path}: a label is {count - 1}, and more than {MOST_CLASSES:,} classes are not believed")
    numbers = {part: class_numbers(f"{path}, {given[part][0]}", column, count) for part, column in columns.items()}
    return tuple(map(str, range(count))), numbers


def _named(path: Path, names: NDArray[Any], count: int) -> tuple[str, ...]:
    if names.ndim != 1 or len(names) < count:
        raise DataError(f"{path}, {CLASSES}: it should name the {count} classes, and has the shape {names.shape}")
    return tuple(map(str, names))


def _finite(where: str, array: NDArray[Any]) -> Tensor:
    with np.errstate(over="ignore"):  # told below
        numbers = torch.from_numpy(array.astype(np.float32))
    if not numbers.isfinite().all():
        raise DataError(f"{where}: some numbers are not finite in float32")
    return numbers
