"""Random numbers of a block of rows that do not depend on the rows after each row."""

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
