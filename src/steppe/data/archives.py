"""Archives unpacked into a folder of their own: nothing outside of it is written, and no more than was agreed."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .damage import MOST_BYTES, DataError

MOST_FILES = 500_000  # TinyImageNet has 120 thousand


def unpack(archive: Path, into: Path, most: int = MOST_BYTES) -> None:
    """Writes the files of a .zip or a .tar, plain or compressed, into an empty folder; on an error the folder goes."""
    into.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                _refuse_bombs([entry.file_size for entry in packed.infolist()], most)
                packed.extractall(into)  # takes leading slashes and dots off names
        else:
            with tarfile.open(archive) as tar:
                _refuse_bombs([member.size for member in tar], most)
                tar.extractall(into, filter="data")  # refuses what leads out of the folder, and devices
    except BaseException as error:
        shutil.rmtree(into, ignore_errors=True)
        if isinstance(error, Exception):  # damage makes the readers fail in ways that have no end
            raise DataError(f"{archive}: it cannot be unpacked: {error}") from error
        raise


def _refuse_bombs(sizes: Sequence[int], most: int) -> None:
    if sum(sizes) > most or len(sizes) > MOST_FILES:
        raise ValueError(f"it holds more than {most:,} bytes or {MOST_FILES:,} files")
