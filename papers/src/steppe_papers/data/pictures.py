"""Pictures of any size with lists of labels beside them: Flowers102, Stanford Cars, FGVC-Aircraft, Oxford-IIIT Pets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from steppe.data import DATASETS, DataError, Dataset, Splits
from steppe.data.arrays import read_mat
from steppe.data.folders import beside, inside, lines, pixels

Pictures = list[tuple[Path, int]]  # files and class numbers
Lists = tuple[tuple[str, ...], Pictures, Pictures]  # names of the classes, pictures to train on and to test on


def read(root: Path | str, name: str, size: int) -> Splits:
    """Read one of these data sets from under a root.

    Parameters
    ----------
    root
        The folder that holds the data sets.
    name
        A key of `LISTS`.
    size
        The shorter side of each picture is scaled to this number of pixels, and the centre is cropped.

    """
    folder = DATASETS[name].find(root)
    classes, train, test = LISTS[name](folder)
    if not train or not test:
        raise DataError(f"{folder}: its lists name {len(train)} pictures to train on and {len(test)} to test on")
    for file, label in (*train, *test):
        if not 0 <= label < len(classes):
            raise DataError(f"{folder}: {file.name} is of class {label + 1}, and the classes are 1 to {len(classes)}")
        if not file.is_file():
            raise DataError(f"{folder}: there is no {file}, which its lists name")
    rows = Dataset(
        name, pixels([file for file, _ in train], size), torch.tensor([label for _, label in train]), classes
    )
    return Splits(rows, beside(rows, folder, [file for file, _ in test], [label for _, label in test], size))


def _flowers(folder: Path) -> Lists:
    """Nilsback & Zisserman's lists; trained on their training and validation pictures, as in Agnostic-SAM's paper."""
    labels = read_mat(folder / "imagelabels.mat", "flowers102", "labels")["labels"]
    parts = read_mat(folder / "setid.mat", "flowers102", "trnid", "valid", "tstid")

    def pictures(*names: str) -> Pictures:
        rows = [row for name in names for row in np.atleast_1d(parts[name]).tolist()]
        return [(folder / "jpg" / f"image_{row:05d}.jpg", int(labels[row - 1]) - 1) for row in rows]

    classes = tuple(map(str, range(1, DATASETS["flowers102"].classes + 1)))  # the files do not name them
    return classes, pictures("trnid", "valid"), pictures("tstid")


def _cars(folder: Path) -> Lists:
    devkit = folder / "devkit"

    def pictures(path: Path, images: Path) -> Pictures:
        annotations = read_mat(path, "stanford-cars", "annotations")["annotations"]
        return [(images / name, int(label) - 1) for name, label in annotations[["fname", "class"]].tolist()]

    classes = tuple(read_mat(devkit / "cars_meta.mat", "stanford-cars", "class_names")["class_names"].tolist())
    train = pictures(devkit / "cars_train_annos.mat", folder / "cars_train")
    return classes, train, pictures(folder / "cars_test_annos_withlabels.mat", folder / "cars_test")


def _aircraft(folder: Path) -> Lists:
    """The variants, the finest of three levels of classes."""
    data = folder / "data"
    classes = tuple(line for _, line in lines(data / "variants.txt"))
    numbers = {name: number for number, name in enumerate(classes)}

    def pictures(part: str) -> Pictures:
        result = []
        for where, line in lines(data / f"images_variant_{part}.txt"):
            picture, _, variant = line.partition(" ")
            if variant not in numbers:
                raise DataError(f"{where}: {variant!r} is not in variants.txt")
            result.append((inside(where, data / "images", f"{picture}.jpg"), numbers[variant]))
        return result

    return classes, pictures("trainval"), pictures("test")


def _pets(folder: Path) -> Lists:
    names: dict[int, str] = {}

    def pictures(part: str) -> Pictures:
        result = []
        for where, line in lines(folder / "annotations" / f"{part}.txt"):
            picture, label, *_ = (*line.split(), "")
            if not label.isdecimal():
                raise DataError(f"{where}: expected are a picture and the number of its class, and not {line!r}")
            names[int(label)] = picture.rpartition("_")[0]
            result.append((inside(where, folder / "images", f"{picture}.jpg"), int(label) - 1))
        return result

    train, test = pictures("trainval"), pictures("test")
    if sorted(names) != list(range(1, len(names) + 1)):
        raise DataError(f"{folder / 'annotations'}: the classes are {sorted(names)[:5]} ..., and not 1 to {len(names)}")
    return tuple(names[number] for number in sorted(names)), train, test


LISTS: dict[str, Callable[[Path], Lists]] = {
    "flowers102": _flowers,
    "stanford-cars": _cars,
    "fgvc-aircraft": _aircraft,
    "oxford-pets": _pets,
}
