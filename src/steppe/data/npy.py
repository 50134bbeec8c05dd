"""The headers of .npy files, looked at before anything behind them is read."""

from __future__ import annotations

import struct
import tokenize
import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from .damage import DataError

NUMBERS = "biuf"


@dataclass(frozen=True)
class Header:
    """What an array file says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int  # where the numbers begin

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def header(path: Path | str, file: IO[bytes], kinds: str = NUMBERS) -> Header:
    """The header of an array of numbers (or of other `kinds` of dtype); objects, which are pickles, are refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of headers by Python 2, and reads them
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"format version {version}")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
    except (ValueError, TypeError, KeyError, SyntaxError, EOFError, OverflowError, MemoryError, RecursionError,
            struct.error, tokenize.TokenError) as error:  # fmt: skip
        raise DataError(f"{path}: not a .npy file with a header that can be read: {error}") from error
    if dtype.hasobject:
        raise DataError(f"{path}: it holds Python objects, that is a pickle, which could run code; save numbers only")
    if dtype.kind not in kinds or any(axis < 0 for axis in shape):
        raise DataError(f"{path}: it holds {dtype} of shape {shape}, and numbers were expected")
    return Header(shape, dtype, fortran, file.tell())
