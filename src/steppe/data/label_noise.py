"""Label noise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import torch

from .dataset import Dataset


def symmetric(dataset: Dataset, fraction: float, seed: int = 0) -> Dataset:
    """Replace exactly this fraction of the labels (rounded to a row) by one of the *other* classes, uniformly.

    So a fraction of 0.4 means 40 % wrong labels. Some papers draw the new label from all classes, which leaves
    1 / classes of the noisy rows right: there 0.4 means 36 % wrong on ten classes.

    Which rows change, and to what, depends on the seed and on each row's content, not on its place: shuffling rows
    before or after gives the same rows, and noisy rows of a subset get the labels that they get in the full set.
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
