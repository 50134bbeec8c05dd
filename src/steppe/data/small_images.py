"""MNIST, Fashion-MNIST, SVHN, CIFAR-10 and CIFAR-100 as published, and CIFAR-10N's labels (Wei et al. 2022).

CIFAR-10N has labels of CIFAR-10's training images by people, with 9 to 40 % of them wrong.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._util.checkpoints import load_plain
from .._util.names import unknown
from .arrays import read_idx, read_mat, read_npz, read_pickle
from .catalogue import CIFAR10_BATCHES, DATASETS
from .dataset import DataError, Dataset, Splits, check_pairs, class_numbers


def read(root: Path | str, name: str) -> Splits:
    """Read one of these data sets from under a root."""
    folder = DATASETS[name].find(root)
    if name == "svhn":
        return Splits(*(svhn_part(folder / f"{part}_32x32.mat") for part in ("train", "test")))
    if name in CIFAR:
        classes = _cifar_classes(folder, name)
        return Splits(*(_cifar_part(folder, name, batches, classes) for batches in CIFAR_BATCHES[name]))
    published = mnist_or_fashion(folder)
    if published not in (None, name):
        raise DataError(f"{folder}: these are the files of {published}, not of {name}")
    return Splits(*(_mnist_part(folder, part, name) for part in ("train", "t10k")))


# -- MNIST ------------------------------------------------------------------------------------------------------------

MNIST_CLASSES = {
    "mnist": tuple("0123456789"),
    # the table in the README of Fashion-MNIST
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
# Both sets have the same file names: the SHA-256 of the published test labels, unpacked, tells them apart
TEST_LABELS = {
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5": "mnist",
    "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9": "fashion-mnist",
}


def mnist_or_fashion(folder: Path) -> str | None:
    """Return which of the two published sets the files in a folder are, or None."""
    labels = read_idx(_idx_file(folder, "t10k-labels-idx1-ubyte"))
    return TEST_LABELS.get(hashlib.sha256(labels.tobytes()).hexdigest())


def _mnist_part(folder: Path, part: str, name: str) -> Dataset:
    images_file, labels_file = (_idx_file(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or not images.size:
        raise DataError(f"{images_file}: images should be (rows, height, width), and are {images.shape}")
    check_pairs(images_file, len(images), len(labels))
    classes = MNIST_CLASSES[name]
    targets = class_numbers(labels_file, labels, len(classes))
    return Dataset(name, torch.from_numpy(images[:, None].copy()), targets, classes)


def _idx_file(folder: Path, name: str) -> Path:
    return path if (path := folder / name).is_file() else folder / f"{name}.gz"


# -- SVHN -------------------------------------------------------------------------------------------------------------


def svhn_part(path: Path) -> Dataset:
    """Read the images and labels of one file: X is (32, 32, 3, rows), y has 1 to 10, and 10 stands for the digit 0."""
    content = read_mat(path, "svhn", "X", "y")
    images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    labels = class_numbers(path, content["y"] % 10, 10)
    return Dataset("svhn", torch.from_numpy(images), labels, tuple("0123456789"))


# -- CIFAR, in the binary and in the Python layout --------------------------------------------------------------------

CIFAR = ("cifar10", "cifar100")
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_BATCHES = {"cifar10": (CIFAR10_BATCHES, ("test_batch",)), "cifar100": (("train",), ("test",))}
LABEL_BYTES = {"cifar10": 1, "cifar100": 2}  # CIFAR-100: one of 20 coarse classes, then one of 100 fine ones
LABEL_KEY = {"cifar10": "labels", "cifar100": "fine_labels"}
# files of class names: lines of the binary layout; pickle of the Python layout and key in it
CLASS_NAMES = {
    "cifar10": ("batches.meta.txt", "batches.meta", "label_names"),
    "cifar100": ("fine_label_names.txt", "meta", "fine_label_names"),
}


def _cifar_part(folder: Path, name: str, batches: tuple[str, ...], classes: tuple[str, ...]) -> Dataset:
    images, targets = [], []
    for batch in batches:
        binary = folder / f"{batch}.bin"
        path = binary if binary.is_file() else folder / batch
        pixels, labels = _cifar_binary(path, name) if path == binary else _cifar_pickle(path, name)
        check_pairs(path, len(pixels), len(labels))
        images.append(pixels)
        targets.append(class_numbers(path, labels, len(classes)))
    inputs = torch.from_numpy(np.concatenate(images).reshape(-1, 3, 32, 32))
    return Dataset(name, inputs, torch.cat(targets), classes)


def _cifar_binary(path: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    before = LABEL_BYTES[name]
    size, record = path.stat().st_size, before + CIFAR_PIXELS
    if not size or size % record:
        raise DataError(f"{path}: it has {size} bytes, and should have a multiple of {record}, one per record")
    records = np.fromfile(path, np.uint8).reshape(-1, record)
    return records[:, before:], records[:, before - 1]


def _cifar_pickle(path: Path, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table = read_pickle(path, name)
    return table["data"], np.array(table[LABEL_KEY[name]])


def _cifar_classes(folder: Path, name: str) -> tuple[str, ...]:
    count = DATASETS[name].classes
    lines, pickled, key = CLASS_NAMES[name]
    names = [str(number) for number in range(count)]  # where the list of names is missing
    if (path := folder / lines).is_file():
        names = path.read_text(encoding="latin-1").split()
    elif (path := folder / pickled).is_file():
        names = read_pickle(path, name)[key]
    if len(names) != count:
        raise DataError(f"{path}: it should hold the names of {count} classes")
    return tuple(names)


def _entry(path: Path, table: dict[str, Any], key: str) -> Any:
    if key not in table:
        raise DataError(f"{path}: it has no {key!r}, only {', '.join(sorted(map(str, table))) or 'nothing'}")
    return table[key]


# -- CIFAR-10N --------------------------------------------------------------------------------------------------------

HUMAN_LABELS = {
    "cifar10n-aggre": "aggre_label",  # the majority of three people
    "cifar10n-random1": "random_label1",
    "cifar10n-random2": "random_label2",
    "cifar10n-random3": "random_label3",
    "cifar10n-worst": "worse_label",  # a wrong one of the three, where there is one
}
CLEAN = "clean_label"
PLACES = (".", "cifar-10-100n/data", "cifar10n", "cifar-10-batches-bin", "cifar-10-batches-py")
FILES = ("CIFAR-10_human.pt", "CIFAR-10_human.npz", "cifar10n_noisy_train_labels.npz")
ADDRESS = "https://github.com/UCSC-REAL/cifar-10-100n"
MOST_BYTES = 64 << 20  # of a file: six rows of 50,000 labels in int64 are 2.4 MB


def check_labels(labels: str, data: str) -> None:
    """Raise ValueError unless there are such labels of a data set."""
    if labels not in HUMAN_LABELS:
        raise ValueError(unknown("set of labels", labels, HUMAN_LABELS))
    if data != "cifar10":
        raise ValueError(f"{labels} are labels of cifar10, and the data set is {data}")


def relabelled(train: Dataset, root: Path | str, labels: str) -> Dataset:
    """Return CIFAR-10's training rows with labels by people.

    Parameters
    ----------
    train
        All training rows, in the official order.
    root
        The folder that holds the data sets, with the official `CIFAR-10_human.pt`, or the same arrays in a .npz file.
    labels
        A key of `HUMAN_LABELS`.

    """
    check_labels(labels, train.name)
    root = Path(root).expanduser()
    path = next((p for place in PLACES for name in FILES if (p := root / place / name).is_file()), None)
    if path is None:
        places = ", ".join(str(root / place) for place in PLACES)
        raise FileNotFoundError(f"CIFAR-10N's {FILES[0]} is not under {root}. Looked in {places}. It is at {ADDRESS}.")
    table = _label_table(path)
    clean, noisy = (_label_column(path, table, key, len(train.classes)) for key in (CLEAN, HUMAN_LABELS[labels]))
    if not torch.equal(clean, train.targets.cpu()):
        raise DataError(
            f"{path}: its {CLEAN} differs from the labels of the {len(train)} training rows of {train.name}; one of "
            "the two is incomplete or in another order"
        )
    check_pairs(f"{path}, {HUMAN_LABELS[labels]}", len(train), len(noisy))
    return replace(train, targets=noisy.to(train.targets.device))


def _label_table(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > MOST_BYTES:
        raise DataError(f"{path}: it has {size:,} bytes, and labels of CIFAR-10 have less than {MOST_BYTES:,}")
    if path.suffix == ".npz":
        return dict(read_npz(path))
    # what a pickled array of integers names, as numpy 1 and numpy 2 spell it
    rebuild = np.zeros(1).__reduce__()[0]
    allowed: list[Any] = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    allowed += [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in ("u1", "i4", "i8")}]
    try:
        table = load_plain(path, allowed)
    except ValueError as error:
        raise DataError(f"{path}: not a file of labels as published; nothing in it was run: {error}") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: it holds a {type(table).__name__}, and a dictionary of labels was expected")
    return table


def _label_column(path: Path, table: dict[str, Any], key: str, classes: int) -> Tensor:
    column = _entry(path, table, key)
    try:
        numbers = np.asarray(column)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{path}: {key!r} is no row of numbers: {error}") from error
    if numbers.dtype.kind not in "iu":
        raise DataError(f"{path}: {key!r} should be whole numbers, and is {numbers.dtype} of shape {numbers.shape}")
    return class_numbers(f"{path}, {key}", numbers.reshape(-1), classes)
