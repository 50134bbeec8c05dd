"""Corruptions by name and severity, on images and on data sets, with a cache on disk.

The constants at five severities are from the scripts of Hendrycks & Dietterich (2019). CIFAR-10-C and CIFAR-100-C have
one set of constants, and TinyImageNet-C another, harsher one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from ..._util.digests import digest, read_array, save_array
from ..._util.names import unknown
from ..dataset import Dataset
from . import camera, weather
from .camera import Draws

BLOCK = 1000  # rows corrupted together
SMALLEST = 4  # pixels, so that every margin can be mirrored
LIBRARIES = ("numpy", "scipy", "torch", "pillow")  # another release may draw or round differently
Constants = tuple[float, ...]

SEVERITIES: Mapping[str, tuple[Constants, ...]] = {
    # the benchmark's fifteen
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),  # standard deviation
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),  # photons of white
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),  # share of the values
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, softness of its edge
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),  # sigma, rounds of moving pixels, how far (1)
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
    # strength and smoothness of the field, and how far three points move
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
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

TINY_IMAGENET: Mapping[str, tuple[Constants, ...]] = {
    "gaussian_noise": ((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
    "shot_noise": ((250,), (100,), (50,), (30,), (15,)),
    "impulse_noise": ((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 2, 1), (0.7, 1, 2), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": ((6,), (11,), (15,), (20,), (25,)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
    "pixelate": ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
    "jpeg_compression": ((65,), (58,), (50,), (40,), (25,)),
    "speckle_noise": ((0.15,), (0.2,), (0.25,), (0.3,), (0.35,)),
    "gaussian_blur": ((0.5,), (0.75,), (1,), (1.25,), (1.5,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
}

CONSTANTS = {"cifar": SEVERITIES, "tiny-imagenet": TINY_IMAGENET}

NAMES = tuple(SEVERITIES)
MAIN = NAMES[:15]
"""The benchmark's; its authors keep the other four for validation."""
GROUPS = {"all": NAMES, "main": MAIN}

CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(weather, name, None) or getattr(camera, name) for name in NAMES
}


def selected(names: Iterable[str]) -> tuple[str, ...]:
    """Return corruptions by name, with those of `all` (19) and `main` (15) in their place, each once."""
    names = list(names)
    for name in names:
        if name not in CORRUPTIONS and name not in GROUPS:
            raise ValueError(unknown("corruption", name, [*NAMES, *GROUPS]))
    return tuple(dict.fromkeys(single for name in names for single in GROUPS.get(name, (name,))))


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, constants: str = "cifar") -> Tensor:
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
    constants
        "cifar" for those of CIFAR-10-C and CIFAR-100-C, "tiny-imagenet" for those of TinyImageNet-C.

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
        needs = f"bytes (rows, 1 or 3 channels, height, width) of at least {SMALLEST} x {SMALLEST} pixels"
        raise ValueError(f"{name} takes {needs}, and these are {images.dtype} of shape {shape}")
    values = CONSTANTS[constants][name][severity - 1]
    out = torch.empty(shape, dtype=torch.uint8)
    for number, start in enumerate(range(0, len(images), BLOCK)):
        rows = slice(start, start + BLOCK)
        block = images[rows].cpu().float() / 255
        draws = Draws((abs(seed), seed < 0, crc32(name.encode()), severity, number), len(block))
        out[rows] = CORRUPTIONS[name](block, draws, *values).mul(255).round().clamp(0, 255).to(torch.uint8)
    return out


def corrupted(
    dataset: Dataset, name: str, severity: int, seed: int = 0, cache: Path | str | None = None, constants: str = "cifar"
) -> Dataset:
    """Return a data set with corrupted images and the same targets.

    "CIFAR-10-C style", not CIFAR-10-C: the nineteen corruptions of Hendrycks & Dietterich (2019) with their constants,
    reimplemented with other random numbers and other libraries. Levels are rounded, not truncated, and frost is a
    generated texture where the authors use photographs. TinyImageNet-C is stored as JPEG, and these images are not.

    Parameters
    ----------
    dataset, name, severity, seed, constants
        As in `corrupt`.
    cache
        A folder to keep the images in. Several processes may share it; a damaged file is made again.

    """
    images, path = None, None
    if cache:
        path = Path(cache) / f"{name}-{severity}-{_key(dataset.inputs, name, severity, seed, constants)}.npy"
        images = _cached(path, tuple(dataset.inputs.shape))
    if images is None:
        images = corrupt(dataset.inputs, name, severity, seed, constants)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_array(path, images.numpy())
    return replace(dataset, name=f"{dataset.name}-{name}-{severity}", inputs=images.to(dataset.inputs.device))


def _cached(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Read cached images; None if there are none, or the file is damaged."""
    try:
        images = read_array(path)
    except (ValueError, FileNotFoundError):
        return None
    return torch.from_numpy(images) if images.shape == shape and images.dtype == np.uint8 else None


def _key(inputs: Tensor, name: str, severity: int, seed: int, constants: str) -> str:
    """Return a digest of everything that the images depend on."""
    settings = f"{_makers()} {constants} {name} {severity} {seed} {inputs.dtype} {tuple(inputs.shape)}"
    return digest([settings, inputs.cpu().contiguous().numpy().data])


@lru_cache(maxsize=1)
def _makers() -> str:
    """Return a digest of the corruptions' source, and the releases of the libraries below them."""
    folder = Path(__file__).parent
    sources = [*sorted(folder.glob("*.py")), folder.parent / "pixels.py"]
    releases = (f"{library} {_version(library)}" for library in LIBRARIES)
    return " ".join([digest(path.read_bytes() for path in sources), *releases])


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
