"""Pictures of any size with lists of labels beside them: Flowers102, Stanford Cars, FGVC-Aircraft, Oxford-IIIT Pets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import matlab
from .catalogue import CATALOGUE
from .dataset import Dataset, Splits
from .errors import DataError
from .folders import beside, pixels

SIZE = 224  # Agnostic-SAM's paper, Section 4.1


class Picture(NamedTuple):
    """A file and its class number."""

    file: Path
    label: int


class Listing(NamedTuple):
    """The names of the classes, and the pictures to train on and to test on."""

    classes: tuple[str, ...]
    train: list[Picture]
    test: list[Picture]


def read(root: Path | str, name: str, size: int = SIZE) -> Splits:
    """Read one of these data sets from under a root.

    Parameters
    ----------
    root
        The folder that holds the data sets.
    name
        A key of `LISTINGS`.
    size
        The shorter side of each picture is scaled to this number of pixels, and the centre is cropped.

    """
    folder = CATALOGUE[name].find(root)
    classes, train, test = LISTINGS[name](folder)
    if not train or not test:
        raise DataError(f"{folder}: its lists name {len(train)} pictures to train on and {len(test)} to test on")
    for file, label in (*train, *test):
        if not 0 <= label < len(classes):
            raise DataError(f"{folder}: {file.name} is of class {label + 1}, and the classes are 1 to {len(classes)}")
        if not file.is_file():
            raise DataError(f"{folder}: there is no {file}, which its lists name")
    inputs = pixels([picture.file for picture in train], size)
    rows = Dataset(name, inputs, torch.tensor([picture.label for picture in train]), classes)
    tests = beside(rows, folder, [picture.file for picture in test], [picture.label for picture in test], size)
    return Splits(rows, tests)


def _flowers(folder: Path) -> Listing:
    """Nilsback & Zisserman's lists; trained on their training and validation pictures, as in Agnostic-SAM's paper."""
    labels = matlab.variables(folder / "imagelabels.mat", "labels")["labels"]
    parts = matlab.variables(folder / "setid.mat", "trnid", "valid", "tstid")
    numbers = [_whole(folder / "imagelabels.mat", label) for label in labels]

    def listed(*names: str) -> list[Picture]:
        pictures = []
        for entry in (entry for name in names for entry in parts[name]):
            row = _whole(folder / "setid.mat", entry)
            if not 1 <= row <= len(numbers):
                raise DataError(f"{folder / 'setid.mat'}: picture {row}, and there are labels of {len(numbers)}")
            pictures.append(Picture(folder / "jpg" / f"image_{row:05d}.jpg", numbers[row - 1] - 1))
        return pictures

    classes = tuple(map(str, range(1, CATALOGUE["flowers102"].classes + 1)))  # the files do not name them
    return Listing(classes, listed("trnid", "valid"), listed("tstid"))


def _cars(folder: Path) -> Listing:
    names = matlab.variables(folder / "devkit" / "cars_meta.mat", "class_names")["class_names"]
    classes = tuple(_text(folder / "devkit" / "cars_meta.mat", name) for name in names)

    def listed(path: Path, pictures: Path) -> list[Picture]:
        result = []
        for entry in matlab.variables(path, "annotations")["annotations"]:
            if not isinstance(entry, dict) or not {"fname", "class"} <= set(entry):
                raise DataError(f"{path}: annotations without fname and class")
            result.append(
                Picture(_inside(path, pictures, _text(path, entry["fname"])), _whole(path, entry["class"]) - 1)
            )
        return result

    train = listed(folder / "devkit" / "cars_train_annos.mat", folder / "cars_train")
    return Listing(classes, train, listed(folder / "cars_test_annos_withlabels.mat", folder / "cars_test"))


def _aircraft(folder: Path) -> Listing:
    """The variants, the finest of three levels of classes."""
    data = folder / "data"
    classes = tuple(line for _, line in _lines(data / "variants.txt"))
    numbers = {name: number for number, name in enumerate(classes)}

    def listed(part: str) -> list[Picture]:
        path = data / f"images_variant_{part}.txt"
        result = []
        for where, line in _lines(path):
            picture, _, variant = line.partition(" ")
            if variant not in numbers:
                raise DataError(f"{where}: {variant!r} is not in variants.txt")
            result.append(Picture(_inside(where, data / "images", f"{picture}.jpg"), numbers[variant]))
        return result

    return Listing(classes, listed("trainval"), listed("test"))


def _pets(folder: Path) -> Listing:
    names: dict[int, str] = {}

    def listed(part: str) -> list[Picture]:
        path = folder / "annotations" / f"{part}.txt"
        result = []
        for where, line in _lines(path):
            picture, label, *_ = (*line.split(), "", "")
            if not label.isdecimal():
                raise DataError(f"{where}: expected are a picture and the number of its class, and not {line!r}")
            names[int(label)] = picture.rpartition("_")[0]
            result.append(Picture(_inside(where, folder / "images", f"{picture}.jpg"), int(label) - 1))
        return result

    train, test = listed("trainval"), listed("test")
    if sorted(names) != list(range(1, len(names) + 1)):
        raise DataError(f"{folder / 'annotations'}: the classes are {sorted(names)[:5]} ..., and not 1 to {len(names)}")
    return Listing(tuple(names[number] for number in sorted(names)), train, test)


LISTINGS: dict[str, Callable[[Path], Listing]] = {
    "flowers102": _flowers,
    "stanford-cars": _cars,
    "fgvc-aircraft": _aircraft,
    "oxford-pets": _pets,
}


def _lines(path: Path) -> Iterable[tuple[str, str]]:
    """Yield the place and the text of each line, without empty ones and comments."""
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if text.strip() and not text.startswith("#"):
            yield f"{path}, line {number}", text.strip()


def _inside(where: Path | str, folder: Path, name: str) -> Path:
    """Return a file of a folder; a list must not lead out of it."""
    if Path(name).name != name or "\\" in name:
        raise DataError(f"{where}: {name!r} is not the name of a file")
    return folder / name


def _text(path: Path, value: Any) -> str:
    """Return a string, which a struct of Matlab holds in a list."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise DataError(f"{path}: {value!r:.60} where a text is expected")
    return value


def _whole(path: Path, value: Any) -> int:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int | float) or value != int(value):
        raise DataError(f"{path}: {value!r:.60} where a whole number is expected")
    return int(value)
