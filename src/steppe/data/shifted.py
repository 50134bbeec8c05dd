"""Test sets under another distribution, whose classes are some of those that a model was trained on, or unions of them.

ImageNet-R, -A, -Sketch and ObjectNet are folders of class folders named as in training (a subset is enough);
ImageNet-V2's folders are class numbers. HANS is arrays with the classes "entailment" and "neutral+contradiction".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import folders, npz
from .dataset import DataError, Dataset
from .registry import OWN, split_name

JOIN = "+"  # between the training classes of a union


@dataclass(frozen=True)
class ShiftedSet:
    """Rows of a test set, and the training classes that each of its classes stands for."""

    rows: Dataset
    members: tuple[tuple[int, ...], ...]

    def error(self, logits: Tensor) -> float:
        """Return the share of wrong answers among the set's own classes; a union has its members' highest logit."""
        scores = torch.stack([logits[:, list(group)].amax(1) for group in self.members], 1)
        return float((scores.argmax(1) != self.rows.targets.to(scores.device)).double().mean())


def read(name: str, train: Dataset) -> ShiftedSet:
    """Read all rows of `folder:PATH`, `folder:PATH@SIZE` or `npz:PATH`, or their test part if they have one.

    Parameters
    ----------
    name
        The data set.
    train
        The rows that the model was trained on, for their classes and shape.

    """
    kind, place, size = split_name(name)
    if not kind:
        raise ValueError(f"a test set of your own is {', '.join(OWN)}, not {name!r}")
    rows = npz.read_test(place) if kind == "npz" else folders.read_test(place, size)
    if not train.classes or not rows.classes:
        raise DataError(f"{name}: errors under another distribution need classes, and there are numbers as targets")
    if rows.is_images and rows.inputs.shape[1] == 1 and train.inputs.shape[1:] == (3, *rows.inputs.shape[2:]):
        rows = replace(rows, inputs=rows.inputs.expand(-1, 3, -1, -1))  # grey pictures, such as sketches
    if (rows.inputs.shape[1:], rows.fields) != (train.inputs.shape[1:], train.fields):
        shapes = f"{tuple(rows.inputs.shape[1:])} and not {tuple(train.inputs.shape[1:])} as those of {train.name}"
        hint = "; `folder:PATH@SIZE` brings images to one size" if train.is_images else ""
        raise DataError(f"{name}: rows have the shape {shapes}{hint}")
    return ShiftedSet(rows, tuple(_members(name, rows.classes, train.classes)))


def _members(name: str, own: Sequence[str], trained: Sequence[str]) -> list[tuple[int, ...]]:
    numbers = {one: i for i, one in enumerate(trained)}
    if all(one.isdecimal() for one in own) and not set(own) <= set(trained):
        numbers = {str(i): i for i in range(len(trained))}  # folders of ImageNet-V2 are numbers of classes
    groups = []
    for one in own:
        parts = [one] if one in numbers else one.split(JOIN)
        if not set(parts) <= set(numbers):
            raise DataError(
                f"{name}: its class {one!r} is none of the {len(trained)} training classes, such as {trained[0]!r}, "
                f"and no union of them, such as {JOIN.join(trained[:2])!r}: rename it, or leave it out"
            )
        groups.append(tuple(numbers[part] for part in parts))
    if twice := [one for i, one in enumerate(trained) if sum(i in group for group in groups) > 1]:
        raise DataError(f"{name}: the training class {twice[0]!r} belongs to two of its classes")
    return groups
