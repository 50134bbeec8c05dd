"""Corruptions by name and severity, on images and on data sets, with a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from .severities import CONSTANTS, GROUPS, NAMES

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
        raise ValueError(
            f"{name} takes bytes (rows, 1 or 3 channels, height, width) of at least {SMALLEST} x {SMALLEST} pixels, "
            f"and these are {images.dtype} of shape {shape}"
        )
    values = CONSTANTS[constants][name][severity - 1]
    out = torch.empty(shape, dtype=torch.uint8)
    for number, start in enumerate(range(0, len(images), BLOCK)):
        rows = slice(start, start + BLOCK)
        block = images[rows].cpu().float() / 255
        draws = Draws((abs(seed), seed < 0, crc32(name.encode()), severity, number), len(block))
        out[rows] = CORRUPTIONS[name](block, draws, *values).mul(255).round().clamp(0, 255).to(torch.uint8)
    return out


def corrupted(
    dataset: Dataset,
    name: str,
    severity: int,
    seed: int = 0,
    cache: Path | str | None = None,
    constants: str = "cifar",
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
    images = None
    path = (
        Path(cache) / f"{name}-{severity}-{_key(dataset.inputs, name, severity, seed, constants)}.npy"
        if cache
        else None
    )
    if path is not None and path.is_file():
        images = _cached(path, tuple(dataset.inputs.shape))
    if images is None:
        images = corrupt(dataset.inputs, name, severity, seed, constants)
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


def _key(inputs: Tensor, name: str, severity: int, seed: int, constants: str) -> str:
    """Return a digest of everything that the images depend on."""
    whole = sha256(f"{_makers()} {constants} {name} {severity} {seed} {inputs.dtype} {tuple(inputs.shape)}".encode())
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
