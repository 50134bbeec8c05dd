"""Rows with their targets, whole in memory: what every reader returns and everything else takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Inputs and targets, row by row: images as bytes (rows, channels, height, width), or numbers of any shape."""

    name: str
    inputs: Tensor
    targets: Tensor  # class numbers as int64, or numbers to predict
    classes: tuple[str, ...] = ()  # none where targets are numbers to predict

    def __post_init__(self) -> None:
        if not len(self.inputs):
            raise ValueError(f"{self.name}: a data set needs at least one row, and this one has none")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{self.name}: {len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, which: Tensor | slice) -> Self:
        """Some of the rows, in the order asked for."""
        return replace(self, inputs=self.inputs[which], targets=self.targets[which])

    def to(self, device: torch.device | str) -> Self:
        """The same rows on a device: a small data set lives where the model does."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    @property
    def is_images(self) -> bool:
        return self.inputs.dtype == torch.uint8 and self.inputs.ndim == 4


@dataclass(frozen=True)
class Splits:
    """What to train on and what to test on; parts for choosing settings, and for methods that want held-out rows."""

    train: Dataset
    test: Dataset
    validation: Dataset | None = None
    held_out: Dataset | None = None
