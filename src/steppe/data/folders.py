"""Any folder of class folders with pictures in them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import torch

from .damage import DataError
from .dataset import Dataset, Splits
from .images import SUFFIXES, pixels

TEST = (
    "test",
    "val",
    "valid",
    "validation",
)  # the first that is there; with a test folder, one of the others validates
EVERY = 5  # of one folder, every fifth picture of a class tests: a fixed rule, so that everybody gets the same split


def read(root: Path | str, size: int | None = None) -> Splits:
    """The pictures under `train` and `test` (or `val`), or those of one folder of class folders, split by a fixed rule.

    Classes are the names of the folders, in alphabetical order; `size` brings pictures of all sizes to one.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder")
    if not (root / "train").is_dir():
        return _split(*listed(root), root, size)
    tests = [name for name in TEST if (root / name).is_dir()]
    if not tests:
        raise DataError(f"{root}: it has a folder 'train', and none of {', '.join(TEST)} beside it")
    files, labels, classes = listed(root / "train")
    train = Dataset(root.name, pixels(files, size), torch.tensor(labels), classes)
    test, *others = (_beside(root / name, train, size) for name in tests[: 2 if tests[0] == "test" else 1])
    return Splits(train, test, validation=others[0] if others else None)


def class_folders(folder: Path) -> list[Path]:
    """The folders in a folder, in the order of their classes."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def listed(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """The pictures in a folder of class folders, the number of their class, and the classes."""
    folders = class_folders(folder)
    if not folders:
        raise DataError(f"{folder}: it has no class folders in it")
    files: list[Path] = []
    labels: list[int] = []
    for number, one in enumerate(folders):
        found = pictures(one)
        if not found:
            raise DataError(f"{one}: a class folder without pictures ({', '.join(sorted(SUFFIXES))})")
        files += found
        labels += [number] * len(found)
    return files, labels, tuple(one.name for one in folders)


def pictures(folder: Path) -> list[Path]:
    """All pictures in a folder and in the folders in it, in alphabetical order."""
    inside = (Path(place) / name for place, _, names in os.walk(folder) for name in names if not name.startswith("."))
    return sorted(path for path in inside if path.suffix.lower() in SUFFIXES)


def _beside(folder: Path, train: Dataset, size: int | None) -> Dataset:
    files, labels, classes = listed(folder)
    if classes != train.classes:
        odd = ", ".join(sorted(set(classes) ^ set(train.classes))[:5])
        raise DataError(f"{folder}: its classes are not those of the training folder; they differ in {odd}")
    inputs = pixels(files, size)
    if inputs.shape[1:] != train.inputs.shape[1:]:
        shapes = f"{tuple(inputs.shape[1:])} and not {tuple(train.inputs.shape[1:])} as for training"
        raise DataError(f"{folder}: pictures are (channels, height, width) {shapes}")
    return Dataset(train.name, inputs, torch.tensor(labels), classes)


def _split(files: list[Path], labels: list[int], classes: tuple[str, ...], root: Path, size: int | None) -> Splits:
    few = [classes[label] for label, count in Counter(labels).items() if count < EVERY]
    if few:
        raise DataError(f"{root}: every {EVERY}th picture of a class is for testing, and {few[0]!r} has fewer pictures")
    start = {label: labels.index(label) for label in set(labels)}
    tests = torch.tensor([(row - start[label]) % EVERY == EVERY - 1 for row, label in enumerate(labels)])
    whole = Dataset(root.name, pixels(files, size), torch.tensor(labels), classes)
    return Splits(whole.rows(~tests), whole.rows(tests))
