"""Folders of class folders with image files, TinyImageNet among them, read into one tensor of bytes."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .catalogue import CATALOGUE
from .dataset import Dataset, Splits
from .errors import MOST_BYTES, DataError

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
    parts = [root / name for name in tests[: 2 if tests[0] == "test" else 1]]
    test, *others = (_beside(train, part, *_listed_as(classes, part), size) for part in parts)
    return Splits(train, test, validation=others[0] if others else None)


def read_test(root: Path | str, size: int | None = None) -> Dataset:
    """Read the test images under a folder that has them, or all images of a folder of class folders."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder")
    folder = next((root / name for name in TEST if (root / name).is_dir()), root)
    files, labels, classes = listed(folder)
    return Dataset(root.name, pixels(files, size), torch.tensor(labels), classes)


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
        inside = pictures(one)
        if not inside:
            raise DataError(f"{one}: a class folder without pictures ({', '.join(sorted(SUFFIXES))})")
        files += inside
        labels += [number] * len(inside)
    return files, labels, tuple(one.name for one in folders)


def pictures(folder: Path) -> list[Path]:
    """Return all image files under a folder, in alphabetical order."""
    inside = (Path(place) / name for place, _, names in os.walk(folder) for name in names if not name.startswith("."))
    return sorted(path for path in inside if path.suffix.lower() in SUFFIXES)


def _beside(train: Dataset, folder: Path, files: list[Path], labels: list[int], size: int | None = None) -> Dataset:
    """Read images for testing or validation; raise DataError if they are not of the training images' shape."""
    inputs = pixels(files, size)
    if inputs.shape[1:] != train.inputs.shape[1:]:
        shapes = f"{tuple(inputs.shape[1:])} and not {tuple(train.inputs.shape[1:])} as for training"
        raise DataError(f"{folder}: pictures are (channels, height, width) {shapes}")
    return Dataset(train.name, inputs, torch.tensor(labels), train.classes)


def _listed_as(classes: tuple[str, ...], folder: Path) -> tuple[list[Path], list[int]]:
    """List a folder of class folders whose classes have to be those of the training folder."""
    files, labels, own = listed(folder)
    if own != classes:
        odd = ", ".join(sorted(set(own) ^ set(classes))[:5])
        raise DataError(f"{folder}: its classes are not those of the training folder; they differ in {odd}")
    return files, labels


def _split(files: list[Path], labels: list[int], classes: tuple[str, ...], root: Path, size: int | None) -> Splits:
    few = [classes[label] for label, count in Counter(labels).items() if count < EVERY]
    if few:
        raise DataError(f"{root}: every {EVERY}th picture of a class is for testing, and {few[0]!r} has fewer pictures")
    start = {label: labels.index(label) for label in set(labels)}
    tests = torch.tensor([(row - start[label]) % EVERY == EVERY - 1 for row, label in enumerate(labels)])
    whole = Dataset(root.name, pixels(files, size), torch.tensor(labels), classes)
    return Splits(whole.rows(~tests), whole.rows(tests))


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
        return _pixels(files, size)


def _pixels(files: Sequence[Path], size: int | None) -> Tensor:
    width, height = (size, size) if size is not None else _size(files[0])
    if len(files) * 3 * height * width > MOST_BYTES:
        raise DataError(
            f"{files[0].parent}: {len(files)} pictures of {width} x {height} are more than {MOST_BYTES:,} bytes, "
            "the limit of what is kept in memory; make them smaller first"
        )
    whole = np.empty((len(files), 3, height, width), np.uint8)

    def fill(row: int) -> bool:
        rgb, grey = _decoded(files[row], (width, height), size)
        whole[row] = rgb.transpose(2, 0, 1)
        return grey

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the GIL
        all_grey = all(list(pool.map(fill, range(len(files)))))
    return torch.from_numpy(whole[:, :1].copy() if all_grey else whole)


def _size(path: Path) -> tuple[int, int]:
    with _opened(path) as picture:
        return picture.size


def _opened(path: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: not a picture that can be read ({', '.join(FORMATS)})") from error
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged files make Pillow raise errors of many types
        raise DataError(f"{path}: not a readable picture: {error}") from error


def _decoded(path: Path, want: tuple[int, int], size: int | None) -> tuple[np.ndarray, bool]:
    from PIL import ImageOps

    with _opened(path) as picture:
        if size is None and picture.size != want:
            raise DataError(
                f"{path}: it is {picture.size[0]} x {picture.size[1]} where others are {want[0]} x {want[1]}; "
                "bring them to one size, such as 64 with `folder:PATH@64`"
            )
        try:
            rgb = picture.convert("RGB")
            return np.asarray(rgb if size is None else ImageOps.fit(rgb, want)), picture.mode in GREY
        except Exception as error:
            raise DataError(f"{path}: a broken picture: {error}") from error


def read_tiny_imagenet(root: Path | str, name: str = "tiny-imagenet") -> Splits:
    """Read TinyImageNet from under a root; the test rows are its labelled validation images, as in papers.

    The validation folder is as published, with a table of classes, or has class folders, as many scripts produce.
    """
    folder = CATALOGUE[name].find(root)
    files, labels, classes = listed(folder / "train")
    train = Dataset(name, pixels(files), torch.tensor(labels), classes)
    validation = folder / "val"
    annotated = (validation / ANNOTATIONS).is_file() and (validation / "images").is_dir()
    files, labels = _annotated(validation, classes) if annotated else _listed_as(classes, validation)
    return Splits(train, _beside(train, validation, files, labels))


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
