"""TinyImageNet: class folders of JPEGs for training, and a validation folder that comes in two layouts."""

from __future__ import annotations

from pathlib import Path

import torch

from .catalogue import CATALOGUE
from .dataset import Dataset, Splits
from .errors import DataError
from .folders import listed, pixels

ANNOTATIONS = "val_annotations.txt"


def read(root: Path | str, name: str = "tiny-imagenet") -> Splits:
    """Read TinyImageNet from under a root; the test rows are its labelled validation images, as in papers."""
    folder = CATALOGUE[name].find(root)
    files, labels, classes = listed(folder / "train")
    train = Dataset(name, pixels(files), torch.tensor(labels), classes)
    annotated = (folder / "val" / ANNOTATIONS).is_file() and (folder / "val" / "images").is_dir()
    files, labels = (_annotated if annotated else _class_folders)(folder / "val", classes)
    inputs = pixels(files)
    if inputs.shape[1:] != train.inputs.shape[1:]:
        raise DataError(f"{folder}: the pictures in train and in val differ in size")
    return Splits(train, Dataset(name, inputs, torch.tensor(labels), classes))


def _annotated(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """List the published layout: all images in one folder, and a table of names, classes and boxes."""
    path = folder / ANNOTATIONS
    numbers = {name: number for number, name in enumerate(classes)}
    files, labels = [], []
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not text.strip():
            continue
        name, label, *_ = (*text.split("\t"), "", "")
        if label not in numbers:
            raise DataError(f"{path}, line {line}: {label!r} is not a class of the training folder")
        if Path(name).name != name or "\\" in name:  # the table must not lead out of its folder
            raise DataError(f"{path}, line {line}: {name!r} is not the name of a file")
        if not (folder / "images" / name).is_file():
            raise DataError(f"{path}, line {line}: there is no {folder / 'images' / name}")
        files.append(folder / "images" / name)
        labels.append(numbers[label])
    if not files:
        raise DataError(f"{path}: it lists no pictures")
    return files, labels


def _class_folders(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """List the layout that many scripts produce: class folders, as for training."""
    files, labels, own = listed(folder)
    if own != classes:
        odd = ", ".join(sorted(set(own) ^ set(classes))[:5])
        raise DataError(f"{folder}: its classes are not those of the training folder; they differ in {odd}")
    return files, labels
