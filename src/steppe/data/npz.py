"""Data sets of arrays in .npz files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arrays import read_npz
from .dataset import MOST_BYTES, DataError, Dataset, Splits, check_pairs, class_numbers

Arrays = dict[str, NDArray[Any]]

INPUTS = ("x", "inputs", "images", "data")
TOKENS = "tokens"  # integers that a model takes as its one input
FIELDS = ("input_ids", "attention_mask", "token_type_ids")  # integers that a model takes by name, as in Transformers
TARGETS = ("y", "targets", "labels")
PARTS = {"train": ("train",), "test": ("test",), "validation": ("val", "valid", "validation")}
CLASSES = "classes"  # names, if the file has them
EVERY = 5  # every fifth row is a test row in a file without a test part
MOST_CLASSES = 100_000
NUMBERS = "biuf"  # kinds of dtypes


def read(path: Path | str, most: int = MOST_BYTES) -> Splits:
    """Read a data set from arrays such as x_train, y_train, x_test, y_test, or train_images, train_labels, or x and y.

    Byte arrays with three or four axes are images, channels first or last; other inputs become float32. Arrays called
    tokens, or input_ids, attention_mask and token_type_ids (input_ids_train, ...), stay integers. Integer targets are
    classes, others are numbers to predict. Nothing is unpickled.

    Parameters
    ----------
    path
        The .npz file.
    most
        Raise DataError above this number of bytes.

    """
    path = Path(path)
    sets = _sets(path, most)
    if "train" not in sets:
        raise DataError(f"{path}: it holds no arrays for training, such as x_train and y_train, or x and y")
    if "test" in sets:
        return Splits(sets["train"], sets["test"], validation=sets.get("validation"))
    if "validation" in sets:
        return Splits(sets["train"], sets["validation"])
    tests = torch.arange(len(sets["train"])) % EVERY == EVERY - 1
    if not tests.any():
        raise DataError(f"{path}: every {EVERY}th row is for testing, and there are only {len(tests)}")
    return Splits(sets["train"].rows(~tests), sets["train"].rows(tests))


def read_test(path: Path | str, most: int = MOST_BYTES) -> Dataset:
    """Read the test rows of a file that has them, or all rows of x and y."""
    sets = _sets(Path(path), most)
    return sets[next(part for part in ("test", "validation", "train") if part in sets)]


def _sets(path: Path, most: int) -> dict[str, Dataset]:
    """The parts of a file by name; rows without a part are for training."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    arrays = read_npz(path, most)
    for name, array in arrays.items():
        if array.dtype.kind not in NUMBERS + "U":
            raise DataError(f"{path}, {name}: it holds {array.dtype}, and numbers were expected")
    names = {part: columns for part, words in PARTS.items() if (columns := _columns(arrays, words))}
    if "train" not in names and (columns := _columns(arrays, ())):
        names = {"train": columns}
    if not names:
        raise DataError(
            f"{path}: it holds {', '.join(sorted(arrays)) or 'nothing'}; expected are x_train, y_train, "
            "x_test, y_test, or x and y (also inputs or images, tokens or input_ids, targets or labels)"
        )
    classes, targets = _targets(path, arrays, {part: target for part, (_, target) in names.items()})
    sets: dict[str, Dataset] = {}
    for part, (columns_of, _) in names.items():
        where = f"{path}, {next(iter(columns_of.values()))}"
        inputs, fields = _inputs(path, arrays, columns_of)
        check_pairs(where, len(inputs), len(targets[part]))
        sets[part] = Dataset(path.stem, inputs, targets[part], classes, fields)
        first = next(iter(sets.values()))
        if (inputs.shape[1:], fields) != (first.inputs.shape[1:], first.fields):
            raise DataError(f"{where}: its rows have another shape than those for training")
    return sets


def _columns(names: Iterable[str], parts: tuple[str, ...]) -> tuple[dict[str, str], str] | None:
    """Return the arrays of a part's inputs, by what they are, and its targets; of the whole if no part is given."""

    def first(*words: str) -> str | None:
        both = [*words, *map(str.upper, words)]
        spellings = [s for p in parts for w in both for s in (f"{w}_{p}", f"{p}_{w}")] or both
        return next((name for name in spellings if name in names), None)

    targets = first(*TARGETS)
    if one := first(*INPUTS):
        columns = {"": one}
    elif one := first(TOKENS):
        columns = {TOKENS: one}
    else:
        columns = {field: one for field in FIELDS if (one := first(field))}
    return (columns, targets) if columns and targets else None


def _inputs(path: Path, arrays: Arrays, columns: dict[str, str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return inputs, and the names by which a model takes them if they are stacked."""
    if "" in columns:
        return _numbers(f"{path}, {columns['']}", arrays[columns[""]]), ()
    integers: list[Tensor] = []
    for name in columns.values():
        array = arrays[name]
        if array.dtype.kind not in "biu" or array.ndim != 2 or not array.size:
            wrong = f"{array.dtype} of shape {array.shape}"
            raise DataError(f"{path}, {name}: tokens should be integers (rows, length), and are {wrong}")
        integers.append(torch.from_numpy(array.astype(np.int64)))
        if integers[-1].shape != integers[0].shape:
            shapes = f"{tuple(integers[-1].shape)} and {tuple(integers[0].shape)}"
            raise DataError(f"{path}, {name}: arrays of one part should have one shape, and have {shapes}")
    return (integers[0], ()) if TOKENS in columns else (torch.stack(integers, 1), tuple(columns))


def _numbers(where: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in NUMBERS or array.ndim < 2 or not array.size:
        raise DataError(f"{where}: inputs should be numbers, row by row, and are {array.dtype} of shape {array.shape}")
    if array.dtype == np.uint8 and array.ndim == 3:
        return torch.from_numpy(array[:, None].copy())
    if array.dtype == np.uint8 and array.ndim == 4:
        channels_last = array.shape[3] in (1, 3) and array.shape[1] not in (1, 3)
        return torch.from_numpy(np.array(array.transpose(0, 3, 1, 2) if channels_last else array, order="C"))
    return _finite(where, array)


def _targets(path: Path, arrays: Arrays, names: dict[str, str]) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return the classes, none where targets are numbers to predict, and the targets of each part."""
    columns, where = {}, {part: f"{path}, {name}" for part, name in names.items()}
    for part, name in names.items():
        array = arrays[name]
        columns[part] = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind in "biu" else array
        axes = 2 if array.dtype.kind == "f" else 1
        if array.dtype.kind not in NUMBERS or not array.size or not 1 <= columns[part].ndim <= axes:
            wrong = f"{array.dtype} of shape {array.shape}"
            raise DataError(f"{where[part]}: targets should be a class or numbers for each row, and are {wrong}")
    if any(column.dtype.kind == "f" for column in columns.values()):
        return (), {part: _finite(where[part], column) for part, column in columns.items()}
    count = 1 + max(int(column.max()) for column in columns.values())
    if count > MOST_CLASSES:
        raise DataError(f"{path}: a label is {count - 1}, and more than {MOST_CLASSES:,} classes are not read")
    targets = {part: class_numbers(where[part], column, count) for part, column in columns.items()}
    classes = arrays.get(CLASSES, np.arange(count))
    if classes.ndim != 1 or len(classes) < count:
        raise DataError(f"{path}, {CLASSES}: it should name the {count} classes, and has the shape {classes.shape}")
    return tuple(map(str, classes)), targets


def _finite(where: str, array: NDArray[Any]) -> Tensor:
    with np.errstate(over="ignore"):  # checked below
        numbers = torch.from_numpy(array.astype(np.float32))
    if not numbers.isfinite().all():
        raise DataError(f"{where}: some numbers are not finite in float32")
    return numbers
