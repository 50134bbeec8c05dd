"""Corruptions by name and severity, on images and on whole data sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from ..._util.names import unknown
from ..dataset import Dataset
from . import blur, digital, noise, spatter, weather
from .cache import cached
from .draws import Draws
from .severities import NAMES, SEVERITIES

BLOCK = 1000  # rows corrupted together
SMALLEST = 4  # pixels, so that every margin can be mirrored

CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Bytes (rows, 1 or 3, height, width) under one corruption of severity 1 to 5, as bytes on the CPU.

    What happens to a row follows from the image, its number, the seed, the name and the severity: not from the rows
    after it, nor from what ran before. One channel is a grey photograph: noise is drawn once a pixel, colours of water,
    mud and ice act by how bright they are, and saturate has nothing to act on.
    """
    if name not in CORRUPTIONS:
        raise ValueError(unknown("corruption", name, NAMES))
    if not 1 <= severity <= 5:
        raise ValueError(f"{name} has severities 1 to 5, and {severity} was asked for")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or min(shape[2:]) < SMALLEST:
        raise ValueError(
            f"{name} takes bytes (rows, 1 or 3 channels, height, width) of at least {SMALLEST} x {SMALLEST} pixels, "
            f"and these are {images.dtype} of shape {shape}"
        )
    constants = SEVERITIES[name][severity - 1]
    out = torch.empty(shape, dtype=torch.uint8)
    for number, start in enumerate(range(0, len(images), BLOCK)):
        rows = slice(start, start + BLOCK)
        block = images[rows].cpu().float() / 255
        draws = Draws((abs(seed), seed < 0, crc32(name.encode()), severity, number), len(block))
        out[rows] = CORRUPTIONS[name](block, draws, *constants).mul(255).round().clamp(0, 255).to(torch.uint8)
    return out


def corrupted(dataset: Dataset, name: str, severity: int, seed: int = 0, cache: Path | str | None = None) -> Dataset:
    """The same rows and targets with corrupted images, kept in the folder `cache` where one is given.

    "CIFAR-10-C style", not CIFAR-10-C: the nineteen corruptions of Hendrycks & Dietterich (2019) with their constants
    for CIFAR, made anew from other random numbers and other libraries. Levels are rounded, not cut, and frost is a
    texture of our own where the authors have photographs.
    """

    def make() -> Tensor:
        return corrupt(dataset.inputs, name, severity, seed)

    images = make() if cache is None else cached(Path(cache), dataset.inputs, name, severity, seed, make)
    return replace(dataset, name=f"{dataset.name}-{name}-{severity}", inputs=images.to(dataset.inputs.device))
