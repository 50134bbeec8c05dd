"""Corruptions by name and severity, on images and on data sets, with a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from ..._util.digests import read_array, save_array
from ..._util.names import unknown
from ..dataset import Dataset
from . import blur, digital, noise, weather
from .noise import Draws

Constants = tuple[float, ...]

SEVERITIES: Mapping[str, tuple[Constants, ...]] = {
    # the benchmark's fifteen
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),  # standard deviation
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),  # photons of white
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),  # share of the values
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, softness of its edge
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),  # sigma, rounds of moving pixels by one
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),  # radius, sigma
    "zoom_blur": ((6,), (11,), (15,), (20,), (25,)),  # percent, in steps of one
    "snow": (  # mean and deviation of flakes, their size, least level, streak's radius and sigma, what is not whitened
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),  # weights of image and frost
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # amount, smoothness
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),  # added to HSV's value
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),  # what is left of it
    "elastic_transform": (  # strength and smoothness of the field, and how far three points move
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),  # pixels left in a line
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),  # quality
    # the four that the authors keep for validation
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),  # standard deviation over level
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),  # sigma
    "spatter": (  # mean and deviation of liquid, its smoothness, least level; weight of water or sigma of mud; 1 is mud
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # factor of HSV's saturation, and what is added
}

NAMES = tuple(SEVERITIES)


BLOCK = 1000  # rows corrupted together
SMALLEST = 4  # pixels, so that every margin can be mirrored
LIBRARIES = ("numpy", "scipy", "torch", "pillow")  # another release may draw or round differently

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
    "spatter": weather.spatter,
    "saturate": digital.saturate,
}


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupt images.

    A row's result depends on the image, its row number, the seed, the name and the severity: not on the rows after it,
    nor on earlier calls. With one channel, images are treated as grey photographs: noise is drawn once per pixel,
    colours of water, mud and ice act by their luma, and saturate does nothing.

    Parameters
    ----------
    images
        Bytes of shape (rows, 1 or 3, height, width).
    name
        One of `NAMES`.
    severity
        1 to 5.
    seed
        Of the random numbers.

    Returns
    -------
    Tensor
        Bytes of the same shape, on the CPU.

    """
    if name not in CORRUPTIONS:
        raise ValueError(unknown("corruption", name, NAMES))
    if not 1 <= severity <= 5:
        raise ValueError(f"{name} has severities 1 to 5, not {severity}")
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
    """Return a data set with corrupted images and the same targets.

    "CIFAR-10-C style", not CIFAR-10-C: the nineteen corruptions of Hendrycks & Dietterich (2019) with their constants
    for CIFAR, reimplemented with other random numbers and other libraries. Levels are rounded, not truncated, and frost
    is a generated texture where the authors use photographs.

    Parameters
    ----------
    dataset, name, severity, seed
        As in `corrupt`.
    cache
        A folder to keep the images in. Several processes may share it; a damaged file is made again.

    """
    images = None
    path = Path(cache) / f"{name}-{severity}-{_key(dataset.inputs, name, severity, seed)}.npy" if cache else None
    if path is not None and path.is_file():
        images = _cached(path, tuple(dataset.inputs.shape))
    if images is None:
        images = corrupt(dataset.inputs, name, severity, seed)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_array(path, images.numpy())
    return replace(dataset, name=f"{dataset.name}-{name}-{severity}", inputs=images.to(dataset.inputs.device))


def _cached(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Read cached images; None if the file is damaged."""
    try:
        images = read_array(path, digest_required=True)
    except ValueError:
        return None
    return torch.from_numpy(images) if images.shape == shape and images.dtype == np.uint8 else None


def _key(inputs: Tensor, name: str, severity: int, seed: int) -> str:
    """Return a digest of everything that the images depend on."""
    whole = sha256(f"{_makers()} {name} {severity} {seed} {inputs.dtype} {tuple(inputs.shape)}".encode())
    whole.update(inputs.cpu().contiguous().numpy().data)
    return whole.hexdigest()[:32]


@lru_cache(maxsize=1)
def _makers() -> str:
    """Return a digest of the corruptions' source, and the releases of the libraries below them."""
    folder = Path(__file__).parent
    sources = [*sorted(folder.glob("*.py")), folder.parent / "pixels.py"]
    code = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return " ".join([code, *(f"{library} {_version(library)}" for library in LIBRARIES)])


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
