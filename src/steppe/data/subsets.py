"""The rows and labels to train on: subsets, parts set aside for validation and held-out passes, and label noise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from ..core.draw import permutation
from .dataset import Dataset, Splits


def first(dataset: Dataset, fraction: float) -> Dataset:
    """Return the first rows in their stored order, as in the papers' "first 10 %" columns.

    Parameters
    ----------
    dataset
        All rows.
    fraction
        The fraction of them to return.

    """
    return dataset.rows(slice(_count(dataset, fraction)))


def per_class(dataset: Dataset, n: int) -> Dataset:
    """Return the first rows of each class, in their stored order.

    Parameters
    ----------
    dataset
        All rows.
    n
        The number of rows of each class.

    """
    if not dataset.classes:
        raise ValueError(f"{dataset.name} has numbers as targets, not classes: it has no rows per class")
    counts = torch.bincount(dataset.targets, minlength=len(dataset.classes))
    if n < 1 or n > int(counts.min()):
        smallest, least = dataset.classes[int(counts.argmin())], int(counts.min())
        raise ValueError(f"{dataset.name}: {n} rows per class: class {smallest!r} has {least}; use 1 to {least}")
    return dataset.rows(_rank_in_class(dataset.targets, torch.arange(len(dataset))) < n)


def split(dataset: Dataset, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split off a random part: return the other rows and the part, both in their stored order.

    Parameters
    ----------
    dataset
        All rows. Where targets are classes the part is stratified, to within one row per class.
    fraction
        The fraction of the rows in the part.
    seed
        Selects the rows.

    """
    n = _count(dataset, fraction)
    if n == len(dataset):
        raise ValueError(f"{dataset.name}: a part of {fraction:g} of {len(dataset)} rows leaves none of them")
    targets = dataset.targets.cpu() if dataset.classes else torch.zeros(len(dataset), dtype=torch.int64)
    ranks = _rank_in_class(targets, permutation(len(dataset), seed))
    part = (ranks < _shares(torch.bincount(targets), n)[targets]).to(dataset.targets.device)
    return dataset.rows(~part), dataset.rows(part)


def set_aside(splits: Splits, validation: float = 0.0, held_out: float = 0.0, seed: int = 0) -> Splits:
    """Move parts of the training rows to validation and to held-out rows.

    Parameters
    ----------
    splits
        The training rows, and the parts that stay.
    validation, held_out
        Fractions of the training rows before the split. The validation rows do not depend on `held_out`.
    seed
        Selects the rows.

    """
    train = splits.train
    if validation:
        train, part = split(train, validation, seed)
        splits = replace(splits, train=train, validation=part)
    if held_out:
        left = 1 - validation
        if held_out >= left:
            raise ValueError(f"{train.name}: validation {validation:g} and held-out {held_out:g} leave no rows")
        train, part = split(train, held_out / left, seed)
        splits = replace(splits, train=train, held_out=part)
    return splits


def _count(dataset: Dataset, fraction: float) -> int:
    n = round(fraction * len(dataset)) if 0 < fraction <= 1 else 0
    if n < 1:
        way_out = f"use a fraction above {0.5 / len(dataset):.1g} and up to 1"
        raise ValueError(f"{dataset.name}: a fraction of {fraction:g} is no row of {len(dataset)}; {way_out}")
    return n


def _rank_in_class(targets: Tensor, order: Tensor) -> Tensor:
    """Return for each row how many rows of its class come before it in an order."""
    by_class = order[targets[order].argsort(stable=True)]
    sizes = torch.bincount(targets)
    starts = sizes.cumsum(0) - sizes
    ranks = torch.empty_like(order)
    ranks[by_class] = torch.arange(len(order), device=order.device) - starts[targets[by_class]]
    return ranks


def _shares(sizes: Tensor, n: int) -> Tensor:
    """Divide n rows among the classes in proportion, by largest remainders."""
    shares, remainder = sizes * n // sizes.sum(), sizes * n % sizes.sum()
    up = remainder.argsort(descending=True, stable=True)[: n - int(shares.sum())]
    shares[up] += 1
    return shares


def symmetric_noise(dataset: Dataset, fraction: float, seed: int = 0) -> Dataset:
    """Replace exactly this fraction of the labels (rounded to a row) by one of the *other* classes, uniformly.

    A fraction of 0.4 means 40 % wrong labels. Some papers draw the new label from all classes, which leaves
    1 / classes of the noisy rows correct: there 0.4 means 36 % wrong labels on ten classes.

    Parameters
    ----------
    dataset
        Rows with classes as targets.
    fraction
        The fraction of wrong labels.
    seed
        Selects, with each row's content and not its position, the noisy rows and their labels: shuffling before or
        after gives the same rows, and noisy rows of a subset get the labels that they get in the full set.

    """
    classes = len(dataset.classes)
    if classes < 2:
        raise ValueError(f"{dataset.name}: label noise needs two classes or more, and this data set has {classes}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"{dataset.name}: the fraction of wrong labels is from 0 to 1, not {fraction:g}")
    chance, shift = _draws(dataset, seed)
    noisy = np.argsort(chance, kind="stable")[: round(fraction * len(dataset))]
    move = np.zeros(len(dataset), dtype=np.int64)
    move[noisy] = 1 + shift[noisy] % np.uint64(classes - 1)
    targets = dataset.targets
    return replace(dataset, targets=(targets + torch.from_numpy(move).to(targets.device)) % classes)


def _draws(dataset: Dataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two random 64-bit numbers per row, from its input, its label and the number of equal rows before it."""
    inputs = dataset.inputs.detach().cpu().contiguous().numpy().reshape(len(dataset), -1).view(np.uint8)
    seen: Counter[bytes] = Counter()
    numbers = bytearray()
    for row, label in zip(inputs, dataset.targets.tolist(), strict=True):
        row_key = blake2b(row.tobytes(), digest_size=16, salt=int(label).to_bytes(8, "little")).digest()
        copy, seen[row_key] = seen[row_key], seen[row_key] + 1
        numbers += blake2b(row_key, digest_size=16, key=f"{seed},{copy}".encode()).digest()
    chance, shift = np.frombuffer(bytes(numbers), dtype="<u8").reshape(-1, 2).T
    return chance, shift
