"""Corruptions of images by name and severity: remade on data sets, with a cache on disk. steppe-papers has nineteen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from .._util.digests import digest, read_array, save_array
from .._util.names import unknown
from .._util.registry import Registry
from .dataset import Dataset

BLOCK = 1000  # rows corrupted together
SMALLEST = 4  # pixels, so that every margin can be mirrored
LIBRARIES = ("numpy", "scipy", "torch", "pillow")  # another release may draw or round differently
Constants = tuple[tuple[float, ...], ...]  # of a corruption at each severity

# Hendrycks & Dietterich 2019; the authors keep the last four for validation
MAIN = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
NAMES = (*MAIN, "speckle_noise", "gaussian_blur", "spatter", "saturate")
GROUPS = {"all": NAMES, "main": MAIN}


@dataclass(frozen=True)
class Draws:
    """Random numbers as a function of a key and of their use; the first dimension is the rows.

    NumPy fills arrays in order, so a row's numbers do not depend on the rows after it (torch's normal numbers do).
    """

    key: tuple[int, ...]
    rows: int

    def normal(self, use: str, *shape: int) -> Tensor:
        """Draw independent standard Gaussian numbers."""
        return torch.from_numpy(self._stream(use).standard_normal((self.rows, *shape), dtype=np.float32))

    def uniform(self, use: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw independent numbers, uniform between low and high."""
        return torch.from_numpy(self._stream(use).random((self.rows, *shape)) * (high - low) + low)

    def integers(self, use: str, *shape: int, low: int, high: int) -> Tensor:
        """Draw independent integers from low to high - 1."""
        return self.uniform(use, *shape, low=low, high=high).floor().long()

    def _stream(self, use: str) -> np.random.Generator:
        return np.random.default_rng([*self.key, crc32(use.encode())])


@dataclass(frozen=True)
class Corruption:
    """A corruption of images by name.

    Parameters
    ----------
    name
        The name in configurations.
    apply
        A function of images from 0 to 1, (rows, channels, height, width), of `Draws` and of constants; its result is
        clipped.
    cifar, tiny_imagenet
        The constants at five severities, for TinyImageNet where they differ.

    """

    name: str
    apply: Callable[..., Tensor]
    cifar: Constants
    tiny_imagenet: Constants


CORRUPTIONS: Registry[Corruption] = Registry("corruption", "steppe.corruptions")
Apply = TypeVar("Apply", bound=Callable[..., Tensor])


def register(name: str, cifar: Constants, tiny_imagenet: Constants | None = None) -> Callable[[Apply], Apply]:
    """A decorator that registers a function as the corruption of that name, with constants as in `Corruption`.

    A package that does so declares an entry point in the group `steppe.corruptions`.
    """

    def add(apply: Apply) -> Apply:
        CORRUPTIONS.add(name, Corruption(name, apply, cifar, tiny_imagenet or cifar), apply.__module__)
        return apply

    return add


def registered(name: str) -> Corruption:
    """Return the corruption of that name, or raise ValueError with what there is."""
    if name not in CORRUPTIONS:
        hint = " Those of the benchmark come with steppe-papers: pip install steppe-papers" if name in NAMES else ""
        raise ValueError(f"{unknown('corruption', name, CORRUPTIONS)}{hint}")
    return CORRUPTIONS[name]


def selected(names: Iterable[str]) -> tuple[str, ...]:
    """Return corruptions by name, with those of `all` (19) and `main` (15) in their place, each once."""
    names = list(names)
    for name in names:
        if name not in NAMES and name not in GROUPS and name not in CORRUPTIONS:
            raise ValueError(unknown("corruption", name, dict.fromkeys([*NAMES, *CORRUPTIONS, *GROUPS])))
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
        A name in `CORRUPTIONS`.
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
    corruption = registered(name)
    if not 1 <= severity <= 5:
        raise ValueError(f"{name} has severities 1 to 5, not {severity}")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or min(shape[2:]) < SMALLEST:
        needs = f"bytes (rows, 1 or 3 channels, height, width) of at least {SMALLEST} x {SMALLEST} pixels"
        raise ValueError(f"{name} takes {needs}, and these are {images.dtype} of shape {shape}")
    values = getattr(corruption, constants.replace("-", "_"))[severity - 1]
    out = torch.empty(shape, dtype=torch.uint8)
    for number, start in enumerate(range(0, len(images), BLOCK)):
        rows = slice(start, start + BLOCK)
        block = images[rows].cpu().float() / 255
        draws = Draws((abs(seed), seed < 0, crc32(name.encode()), severity, number), len(block))
        out[rows] = corruption.apply(block, draws, *values).mul(255).round().clamp(0, 255).to(torch.uint8)
    return out


def corrupted(
    dataset: Dataset, name: str, severity: int, seed: int = 0, cache: Path | str | None = None, constants: str = "cifar"
) -> Dataset:
    """Return a data set with corrupted images and the same targets.

    "CIFAR-10-C style", not CIFAR-10-C: those of steppe-papers are the nineteen corruptions of Hendrycks & Dietterich
    (2019) with their constants, reimplemented with other random numbers and other libraries. Levels are rounded, not
    truncated, and frost is a generated texture where the authors use photographs. TinyImageNet-C is stored as JPEG, and
    these images are not.

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
        with suppress(ValueError, FileNotFoundError):  # a damaged file is made again
            stored = torch.from_numpy(read_array(path))
            fits = stored.shape == dataset.inputs.shape and stored.dtype == torch.uint8
            images = stored if fits else None
    if images is None:
        images = corrupt(dataset.inputs, name, severity, seed, constants)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_array(path, images.numpy())
    return replace(dataset, name=f"{dataset.name}-{name}-{severity}", inputs=images.to(dataset.inputs.device))


def _key(inputs: Tensor, name: str, severity: int, seed: int, constants: str) -> str:
    """Return a digest of everything that the images depend on."""
    source = inspect.getsourcefile(registered(name).apply) or ""
    settings = f"{_makers(source)} {constants} {name} {severity} {seed} {inputs.dtype} {tuple(inputs.shape)}"
    return digest([settings, inputs.cpu().contiguous().numpy().data])


@lru_cache
def _makers(source: str) -> str:
    """Return a digest of a corruption's source, and the releases of the libraries below it."""
    files = sorted(Path(source).parent.glob("*.py")) if source else []
    releases = (f"{library} {_version(library)}" for library in LIBRARIES)
    here = Path(__file__)
    return " ".join([digest(path.read_bytes() for path in (*files, here, here.with_name("pixels.py"))), *releases])


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
