"""Random numbers per row of a block, and the corruptions that add noise.

Images are floats; the caller clips them to 0 .. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from torch import Tensor


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

    def whole(self, use: str, *shape: int, low: int, high: int) -> Tensor:
        """Draw independent integers from low to high - 1."""
        return self.uniform(use, *shape, low=low, high=high).floor().long()

    def _stream(self, use: str) -> np.random.Generator:
        return np.random.default_rng([*self.key, crc32(use.encode())])


def gaussian_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    """Add Gaussian noise of the same size at every level, as of electronics in poor light."""
    return images + deviation * draws.normal("noise", *images.shape[1:])


def shot_noise(images: Tensor, draws: Draws, photons: float) -> Tensor:
    """Draw Poisson counts of photons, with mean `photons` where the image is white."""
    from scipy.special import pdtr

    level = np.round(images.numpy() * 255).astype(np.int64)  # images are bytes, so 256 distributions suffice
    most = int(photons + 12 * photons**0.5) + 12
    chances = pdtr(np.arange(most), np.arange(256)[:, None] * photons / 255)
    ladder = (chances + np.arange(256)[:, None]).ravel()  # all 256 distribution functions, one above the other
    place = np.searchsorted(ladder, draws.uniform("photons", *images.shape[1:]).numpy() + level)
    counts = np.maximum(place - level * most, 0)  # a chance below rounding error lands one step under its ladder
    return torch.from_numpy((counts / photons).astype(np.float32))


def impulse_noise(images: Tensor, draws: Draws, amount: float) -> Tensor:
    """Set this share of the values, per channel, to 0 or 1, half of them each (salt and pepper)."""
    chance = draws.uniform("place", *images.shape[1:])
    return images.masked_fill(chance < amount, 1.0).masked_fill(chance < amount / 2, 0.0)


def speckle_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    """Add Gaussian noise in proportion to the level."""
    return images * (1 + deviation * draws.normal("noise", *images.shape[1:]))
