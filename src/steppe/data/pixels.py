"""Standardisation of images for a model, and grey levels of colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from .dataset import Dataset

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow, OpenCV and JPEG have it
BLOCK = 1 << 24  # entries counted at once


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation per channel, of bytes scaled to 0 .. 1; without them, inputs stay as they are."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Compute them from all pixels of a data set of images; empty for other data sets."""
        if not dataset.is_images:
            return cls()
        counts = torch.stack([_histogram(dataset.inputs[:, c]) for c in range(dataset.inputs.shape[1])]).double()
        share = counts / counts.sum(1, keepdim=True)
        level = torch.arange(256, dtype=torch.float64) / 255
        mean = share @ level
        std = (share * (level - mean[:, None]).square()).sum(1).sqrt()
        std[std == 0] = 1  # a constant channel becomes 0, not NaN
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Standardise images on the scale 0 .. 255, bytes or floats; without a mean, only convert bytes to float."""
        if not self.mean:
            return inputs.float() if inputs.dtype == torch.uint8 else inputs
        if inputs.shape[1] != len(self.mean):
            raise ValueError(f"there are means of {len(self.mean)} channels, and images have {inputs.shape[1]}")
        shift, scale = _shift_and_scale(self, inputs.device)
        return torch.addcmul(shift, inputs, scale)  # one kernel: conversion, product and sum


@lru_cache(maxsize=32)
def _shift_and_scale(standard: Standard, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cached per device: copying numbers to a GPU in every step would synchronise."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (standard.mean, standard.std))
    return (-mean / std).float().to(device), (1 / (255 * std)).float().to(device)


def _histogram(channel: Tensor) -> Tensor:
    """Count each byte value, in integers: exact for any number of pixels."""
    rows = max(1, BLOCK // channel[0].numel())
    parts = (channel[start : start + rows] for start in range(0, len(channel), rows))
    return torch.stack([torch.bincount(part.flatten(), minlength=256) for part in parts]).sum(0).cpu()


def grey(images: Tensor) -> Tensor:
    """Return the luma of each pixel as one channel."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).unsqueeze(1)
