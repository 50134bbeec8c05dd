"""Arrays of .npy and .npz files: numpy reads them, after a look at sizes, and nothing is unpickled."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from .damage import MOST_BYTES, DataError, affordable


def mapped(path: Path) -> NDArray[Any]:
    """The array of a .npy file, left on disk: what is not used is not read."""
    with _told(path):
        array = npy.open_memmap(path, "r")
        held, declared = path.stat().st_size - array.offset, array.nbytes
        if held != declared:
            raise ValueError(f"its header declares {declared} bytes, shape {array.shape}, and {held} are there")
        return array


def arrays(path: Path, most: int = MOST_BYTES) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name; more than `most` bytes are refused."""
    with _told(path), zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        stored = min(path.stat().st_size, sum(entry.compress_size for entry in entries))
        affordable(path, sum(entry.file_size for entry in entries), stored, most)
        found = {}
        for entry in entries:
            with _told(f"{path}, {entry.filename}"):
                content = BytesIO(archive.read(entry))  # no more than it declares, and its checksum is right
                array = npy.read_array(content, allow_pickle=False)
                if content.tell() != entry.file_size:
                    there = f"and the file has {entry.file_size:,}"
                    raise ValueError(f"its header declares {content.tell():,} bytes, shape {array.shape}, {there}")
                found[entry.filename.removesuffix(".npy")] = array
        return found


@contextmanager
def _told(where: Path | str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of headers by Python 2, and reads them
            yield
    except (DataError, FileNotFoundError):
        raise
    except Exception as error:  # damaged headers and archives fail in ways that have no end
        why = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else error
        raise DataError(f"{where}: not arrays of numbers that can be read: {why}") from error
