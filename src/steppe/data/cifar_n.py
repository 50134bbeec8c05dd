"""CIFAR-10N (Wei et al. 2022): labels of CIFAR-10's training images by people, with 9 to 40 % of them wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._util.checkpoints import load_plain
from .._util.names import unknown
from .dataset import Dataset
from .errors import DataError, check_pairs, class_numbers
from .npz import arrays

LABELS = {
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


def refuse_labels(labels: str, data: str) -> None:
    """Raise ValueError unless there are such labels of a data set."""
    if labels not in LABELS:
        raise ValueError(unknown("set of labels", labels, LABELS))
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
        A key of `LABELS`.

    """
    refuse_labels(labels, train.name)
    path = find(root)
    table = _table(path)
    clean, noisy = (_numbers(path, table, key, len(train.classes)) for key in (CLEAN, LABELS[labels]))
    if not torch.equal(clean, train.targets.cpu()):
        raise DataError(
            f"{path}: its {CLEAN} differs from the labels of the {len(train)} training rows of {train.name}; one of "
            "the two is incomplete or in another order"
        )
    check_pairs(f"{path}, {LABELS[labels]}", len(train), len(noisy))
    return replace(train, targets=noisy.to(train.targets.device))


def find(root: Path | str) -> Path:
    """Return the file of labels under a root."""
    root = Path(root).expanduser()
    for path in (root / place / name for place in PLACES for name in FILES):
        if path.is_file():
            return path
    places = ", ".join(str(root / place) for place in PLACES)
    raise FileNotFoundError(f"CIFAR-10N's {FILES[0]} is not under {root}. Looked in {places}. It is at {ADDRESS}.")


def _table(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > MOST_BYTES:
        raise DataError(f"{path}: it has {size:,} bytes, and labels of CIFAR-10 have less than {MOST_BYTES:,}")
    if path.suffix == ".npz":
        return dict(arrays(path))
    try:
        table = load_plain(path, _numpy_names())
    except ValueError as error:
        raise DataError(f"{path}: not a file of labels as published; nothing in it was run: {error}") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: it holds a {type(table).__name__}, and a dictionary of labels was expected")
    return table


def _numpy_names() -> list[Any]:
    """Return what a pickled array of integers names, as numpy 1 and numpy 2 spell it."""
    rebuild = np.zeros(1).__reduce__()[0]
    names = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*names, np.ndarray, np.dtype, *{type(np.dtype(code)) for code in ("u1", "i4", "i8")}]


def _numbers(path: Path, table: dict[str, Any], key: str, classes: int) -> Tensor:
    if key not in table:
        raise DataError(f"{path}: it has no {key!r}, only {', '.join(sorted(map(str, table))) or 'nothing'}")
    try:
        numbers = np.asarray(table[key])
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{path}: {key!r} is no row of numbers: {error}") from error
    if numbers.dtype.kind not in "iu":
        raise DataError(f"{path}: {key!r} should be whole numbers, and is {numbers.dtype} of shape {numbers.shape}")
    return class_numbers(f"{path}, {key}", numbers.reshape(-1), classes)
