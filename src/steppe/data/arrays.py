"""Arrays from files: IDX, .npy and .npz of any origin; pickles and .mat files with the published digest only.

Sizes are checked before anything is read, nothing in a file runs, and every damaged file raises one DataError.
"""

from __future__ import annotations

import gzip
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .catalogue import DATASETS
from .dataset import MOST_BYTES, DataError

# Photographs compress twofold, drawn digits tenfold, a decompression bomb a thousandfold. Small files may be empty.
MOST_RATIO = 200
SMALL = 64 * 2**20


def check_size(path: Path, declared: int, stored: int, most: int = MOST_BYTES) -> None:
    """Raise DataError, before anything is read, if a file declares more bytes than a data set has."""
    if declared > most:
        raise DataError(f"{path}: it declares {declared:,} bytes, and the limit is {most:,}; it is damaged, or a bomb")
    if declared > SMALL and declared > MOST_RATIO * stored:
        raise DataError(f"{path}: it declares {declared:,} bytes and stores {stored:,}; it is a decompression bomb")


@contextmanager
def _as_data_error(where: Path | str, problem: str = "not readable arrays of numbers") -> Iterator[None]:
    """Turn the errors of many types that damaged bytes raise into DataError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about headers of Python 2, and reads them
            yield
    except (DataError, FileNotFoundError):
        raise
    except Exception as error:
        why = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: {problem}: {why}") from error


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the array of bytes in an IDX file, plain or gzipped."""
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    with _as_data_error(path, "not a readable IDX file"), gzip.open(path) if zipped else path.open("rb") as file:
        head = file.read(4)
        axes = head[3] if len(head) == 4 else 0
        if head[:3] != b"\0\0\x08" or not 1 <= axes <= 4:  # 8: unsigned bytes
            raise DataError(f"{path}: not an IDX file of bytes: it begins with {head.hex(' ') or 'nothing'}")
        lengths = file.read(4 * axes)
        if len(lengths) < 4 * axes:
            raise DataError(f"{path}: it ends inside its header")
        shape = struct.unpack(f">{axes}I", lengths)
        declared = prod(shape)
        check_size(path, declared, path.stat().st_size)
        body = file.read(declared + 1)
    if len(body) != declared:
        held = "more" if len(body) > declared else len(body)
        raise DataError(f"{path}: {shape} bytes are declared, {declared} in all, and the file holds {held}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def map_npy(path: Path) -> NDArray[Any]:
    """Memory-map the array of a .npy file."""
    with _as_data_error(path):
        array = npy.open_memmap(path, "r")
        stored = path.stat().st_size - array.offset
        if stored != array.nbytes:
            declared = f"{array.nbytes} bytes, shape {array.shape}"
            raise ValueError(f"its header declares {declared}, and the file holds {stored}")
        return array


def read_npz(path: Path, most: int = MOST_BYTES) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .npz file by name; raise DataError above `most` bytes."""
    arrays = {}
    with _as_data_error(path), zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        stored = min(path.stat().st_size, sum(entry.compress_size for entry in entries))
        check_size(path, sum(entry.file_size for entry in entries), stored, most)
        for entry in entries:
            with _as_data_error(f"{path}, {entry.filename}"):
                content = BytesIO(archive.read(entry))  # at most what it declares, with a valid checksum
                array = npy.read_array(content, allow_pickle=False)
                if content.tell() != entry.file_size:
                    declared = f"{content.tell():,} bytes, shape {array.shape}"
                    raise ValueError(f"its header declares {declared}, and the file has {entry.file_size:,}")
                arrays[entry.filename.removesuffix(".npy")] = array
    return arrays


# -- published files, whose readers could crash on others or run what is in them --------------------------------------

_RECONSTRUCT = np.zeros(0).__reduce__()[0]  # its module has another name in each major version of numpy
ALLOWED = {"numpy.core.multiarray._reconstruct": _RECONSTRUCT, "numpy.ndarray": np.ndarray, "numpy.dtype": np.dtype}


def _check_digest(path: Path, name: str) -> None:
    """Raise DataError unless a file has the digest that the data set of that name has for it."""
    if wrong := DATASETS[name].differs(path):
        get = f" `steppe data get {name}` downloads the set" if DATASETS[name].files else ""
        raise DataError(f"{path}: not a file of {DATASETS[name].title} as published: {wrong}.{get}")


def read_mat(path: Path, name: str, *variables: str) -> dict[str, NDArray[Any]]:
    """Read variables of a published .mat file: scipy's reader kills the process on some others."""
    _check_digest(path, name)
    from scipy.io import loadmat

    content: dict[str, NDArray[Any]] = loadmat(path, variable_names=variables, squeeze_me=True)
    return content


def read_pickle(path: Path, name: str) -> dict[str, Any]:
    """Read the dictionary of lists and arrays in a published pickle of Python 2."""
    _check_digest(path, name)
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns about old pickles, and reads them
        table: dict[str, Any] = _Unpickler(file, encoding="latin-1").load()
    return table


class _Unpickler(pickle.Unpickler):
    """Lists, strings, numbers and arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise DataError(f"a pickle names {module}.{name}, which is not allowed")
        return ALLOWED[f"{module}.{name}"]
