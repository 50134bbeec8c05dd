"""From bytes to the numbers that a model sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from .dataset import Dataset

BLOCK = 1 << 24  # entries counted at a time


@dataclass(frozen=True)
class Standard:
    """Each channel's mean and standard deviation, with bytes seen as 0 to 1; none of them: numbers pass as they are."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Of all pixels of a data set of images; for a data set of numbers, none."""
        if not dataset.is_images:
            return cls()
        counts = torch.stack([_histogram(dataset.inputs[:, c]) for c in range(dataset.inputs.shape[1])]).double()
        share = counts / counts.sum(1, keepdim=True)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ level
        std = (share * (level - mean[:, None]).square()).sum(1).sqrt()
        std[std == 0] = 1  # a channel of one colour carries nothing, and must not carry NaN
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Images on the bytes' scale (0 to 255, as bytes or as floats) made standard; without a mean, only floats."""
        if not self.mean:
            return inputs if inputs.is_floating_point() else inputs.float()
        if inputs.shape[1] != len(self.mean):
            raise ValueError(f"means of {len(self.mean)} channels were given, and images have {inputs.shape[1]}")
        shift, scale = _shift_and_scale(self, inputs.device)
        return torch.addcmul(shift, inputs, scale)  # one kernel: conversion, product and sum


@lru_cache(maxsize=32)
def _shift_and_scale(standard: Standard, device: torch.device) -> tuple[Tensor, Tensor]:
    """Made once a device: copying numbers to a GPU in every step would make the host wait."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (standard.mean, standard.std))
    return (-mean / std).float().to(device), (1 / (255 * std)).float().to(device)


def _histogram(channel: Tensor) -> Tensor:
    """How often each byte occurs: exact sums for any number of pixels."""
    rows = max(1, BLOCK // channel[0].numel())
    parts = (channel[start : start + rows] for start in range(0, len(channel), rows))
    return torch.stack([torch.bincount(part.flatten(), minlength=256) for part in parts]).sum(0).cpu()
