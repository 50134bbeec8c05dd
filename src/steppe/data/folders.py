"""Folders of class folders with image files, TinyImageNet among them, read into one tensor of bytes."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .catalogue import DATASETS
from .dataset import MOST_BYTES, DataError, Dataset, Splits

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp"))
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")  # whatever the suffix says: others, such as EPS, start programs
GREY = frozenset(("1", "L", "LA"))

# folders for testing: the first that exists; beside a test folder, one of the others is for validation
TEST = ("test", "val", "valid", "validation")
ANNOTATIONS = "val_annotations.txt"  # of TinyImageNet
EVERY = 5  # without such folders every fifth image of a class is a test image: a fixed rule gives everybody one split


def read(root: Path | str, size: int | None = None) -> Splits:
    """Read the images under `train` and `test` (or `val`), or one folder of class folders, split by a fixed rule.

    Classes are the names of the folders in alphabetical order.

    Parameters
    ----------
    root
        The folder.
    size
        Resize all images to size x size; by default all images have to be of one size.

    """
    root = _folder(root)
    if not (root / "train").is_dir():
        return _split(_read_classes(root, root.name, size), root)
    tests = [name for name in TEST if (root / name).is_dir()]
    if not tests:
        raise DataError(f"{root}: it has a folder 'train', and none of {', '.join(TEST)} beside it")
    train = _read_classes(root / "train", root.name, size)
    parts = [root / name for name in tests[: 2 if tests[0] == "test" else 1]]
    test, *others = (beside(train, part, *_listed_as(train.classes, part), size) for part in parts)
    return Splits(train, test, validation=others[0] if others else None)


def read_test(root: Path | str, size: int | None = None) -> Dataset:
    """Read the test images under a folder that has them, or all images of a folder of class folders."""
    root = _folder(root)
    return _read_classes(next((root / name for name in TEST if (root / name).is_dir()), root), root.name, size)


def _folder(root: Path | str) -> Path:
    if not Path(root).is_dir():
        raise FileNotFoundError(f"{root} is not a folder")
    return Path(root)


def _read_classes(folder: Path, name: str, size: int | None = None) -> Dataset:
    files, labels, classes = listed(folder)
    return Dataset(name, pixels(files, size), torch.tensor(labels), classes)


def _split(dataset: Dataset, root: Path) -> Splits:
    labels = dataset.targets.tolist()
    few = [dataset.classes[label] for label, count in Counter(labels).items() if count < EVERY]
    if few:
        raise DataError(f"{root}: every {EVERY}th picture of a class is for testing, and {few[0]!r} has fewer pictures")
    start = {label: labels.index(label) for label in set(labels)}
    tests = torch.tensor([(row - start[label]) % EVERY == EVERY - 1 for row, label in enumerate(labels)])
    return Splits(dataset.rows(~tests), dataset.rows(tests))


def class_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, in the order of their classes."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def listed(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Return the image files in a folder of class folders, their class numbers, and the classes."""
    folders = class_folders(folder)
    if not folders:
        raise DataError(f"{folder}: it has no class folders in it")
    files: list[Path] = []
    labels: list[int] = []
    for number, one in enumerate(folders):
        inside = (Path(place) / name for place, _, names in os.walk(one) for name in names if not name.startswith("."))
        pictures = sorted(path for path in inside if path.suffix.lower() in SUFFIXES)
        if not pictures:
            raise DataError(f"{one}: a class folder without pictures ({', '.join(sorted(SUFFIXES))})")
        files += pictures
        labels += [number] * len(pictures)
    return files, labels, tuple(one.name for one in folders)


def _listed_as(classes: tuple[str, ...], folder: Path) -> tuple[list[Path], list[int]]:
    """List a folder of class folders whose classes have to be those of the training folder."""
    files, labels, _ = listed(folder)
    check_same_classes(classes, folder)
    return files, labels


def check_same_classes(classes: tuple[str, ...], folder: Path) -> None:
    """Raise DataError unless the class folders in a folder are those of the training folder."""
    odd = {one.name for one in class_folders(folder)} ^ set(classes)
    if odd:
        names = ", ".join(sorted(odd)[:5])
        raise DataError(f"{folder}: its classes are not those of the training folder; they differ in {names}")


def beside(train: Dataset, folder: Path, files: list[Path], labels: list[int], size: int | None = None) -> Dataset:
    """Read images for testing or validation; raise DataError if they are not of the training images' shape."""
    inputs = pixels(files, size)
    if inputs.shape[1:] != train.inputs.shape[1:]:
        shapes = f"{tuple(inputs.shape[1:])} and not {tuple(train.inputs.shape[1:])} as for training"
        raise DataError(f"{folder}: pictures are (channels, height, width) {shapes}")
    return Dataset(train.name, inputs, torch.tensor(labels), train.classes)


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line of a list, without empty ones and comments."""
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if text.strip() and not text.startswith("#"):
            yield f"{path}, line {number}", text.strip()


def inside(where: Path | str, folder: Path, name: str) -> Path:
    """Return a file of a folder; raise DataError if its name in a list leads elsewhere."""
    if Path(name).name != name or "\\" in name:
        raise DataError(f"{where}: {name!r} is not the name of a file")
    return folder / name


def pixels(files: Sequence[Path], size: int | None = None) -> Tensor:
    """Read image files as (rows, channels, height, width): one channel where all are grey, else three.

    All have to be of one size, unless `size` is given: then the shorter side is scaled to it and the centre is cropped.
    """
    if not files:
        raise ValueError("no pictures to read")
    from PIL.Image import DecompressionBombWarning

    with warnings.catch_warnings():  # around the threads: catch_warnings is not thread-safe
        warnings.simplefilter("ignore")  # odd metadata are harmless, and broken pixels raise
        warnings.simplefilter("error", DecompressionBombWarning)
        with _opened(files[0]) as picture:
            width, height = picture.size if size is None else (size, size)
        if len(files) * 3 * height * width > MOST_BYTES:
            pictures = f"{files[0].parent}: {len(files)} pictures of {width} x {height}"
            raise DataError(f"{pictures} need more than {MOST_BYTES:,} bytes, the limit; make them smaller first")
        images = np.empty((len(files), 3, height, width), np.uint8)

        def decode(row: int) -> bool:
            rgb, is_grey = _decoded(files[row], (width, height), size)
            images[row] = rgb.transpose(2, 0, 1)
            return is_grey

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the GIL
            all_grey = all(list(pool.map(decode, range(len(files)))))
    return torch.from_numpy(images[:, :1].copy() if all_grey else images)


def _opened(path: Path) -> Image:
    from PIL import Image

    try:
        return Image.open(path, formats=FORMATS)
    except Exception as error:  # damaged files make Pillow raise errors of many types
        raise DataError(f"{path}: not a picture that can be read ({', '.join(FORMATS)}): {error}") from error


def _decoded(path: Path, shape: tuple[int, int], size: int | None) -> tuple[np.ndarray, bool]:
    """Return the colours of an image file, and whether it is grey."""
    from PIL import ImageOps

    with _opened(path) as picture:
        if size is None and picture.size != shape:
            sizes = f"{picture.size[0]} x {picture.size[1]} where others are {shape[0]} x {shape[1]}"
            raise DataError(f"{path}: it is {sizes}; resize all of them, for example to 64 with `folder:PATH@64`")
        try:
            rgb = picture.convert("RGB")
            return np.asarray(rgb if size is None else ImageOps.fit(rgb, shape)), picture.mode in GREY
        except Exception as error:
            raise DataError(f"{path}: a broken picture: {error}") from error


# -- TinyImageNet -----------------------------------------------------------------------------------------------------


def read_tiny_imagenet(root: Path | str, name: str = "tiny-imagenet") -> Splits:
    """Read TinyImageNet from under a root; the test rows are its labelled validation images, as in papers.

    The validation folder is as published, with a table of classes, or has class folders, as many scripts produce.
    """
    folder = DATASETS[name].find(root)
    train, validation = _read_classes(folder / "train", name), folder / "val"
    annotated = (validation / ANNOTATIONS).is_file() and (validation / "images").is_dir()
    files, labels = (_annotated if annotated else _listed_as)(train.classes, validation)
    return Splits(train, beside(train, validation, files, labels))


def _annotated(classes: tuple[str, ...], folder: Path) -> tuple[list[Path], list[int]]:
    """List the published layout: all images in one folder, and a table of names, classes and boxes."""
    numbers = {name: number for number, name in enumerate(classes)}
    files, labels = [], []
    for where, text in lines(folder / ANNOTATIONS):
        name, label, *_ = (*text.split("\t"), "")
        if label not in numbers:
            raise DataError(f"{where}: {label!r} is not a class of the training folder")
        files.append(inside(where, folder / "images", name))
        labels.append(numbers[label])
        if not files[-1].is_file():
            raise DataError(f"{where}: there is no {files[-1]}")
    if not files:
        raise DataError(f"{folder / ANNOTATIONS}: it lists no pictures")
    return files, labels


def tiny_corruptions(folder: Path) -> list[str]:
    """Return the corruptions in a folder of TinyImageNet-C, which has them by name and severity."""
    return [one.name for one in class_folders(folder) if (one / "1").is_dir()]


def read_tiny_imagenet_c(folder: Path, corruption: str, severity: int, test: Dataset) -> Dataset:
    """Read the images of TinyImageNet-C under one corruption at one severity.

    Parameters
    ----------
    folder
        The folder of the corruptions.
    corruption, severity
        The names of the folders below it; in those are class folders.
    test
        The test rows of TinyImageNet, whose classes and shape the images have. Their order is another.

    """
    place = folder / corruption / str(severity)
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place}")
    return beside(test, place, *_listed_as(test.classes, place))
