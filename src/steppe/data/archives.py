"""Archives unpacked into a folder of their own: no paths that climb out, no links, no more than was agreed."""

from __future__ import annotations

import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from .damage import MOST_BYTES, DataError

MOST_FILES = 500_000  # TinyImageNet has 120 thousand


def unpack(archive: Path, into: Path, most: int = MOST_BYTES) -> None:
    """Writes the files of a .zip or a .tar, plain or compressed, into an empty folder; on an error the folder goes."""
    into.mkdir(parents=True)
    try:
        members = _zipped if zipfile.is_zipfile(archive) else _tarred
        left = most
        for count, (name, size, file) in enumerate(members(archive)):
            left -= size
            if left < 0 or count >= MOST_FILES:
                raise DataError(f"{archive}: it holds more than {most:,} bytes or {MOST_FILES:,} files; it is a bomb")
            target = into / _inside(archive, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                shutil.copyfileobj(file, out)
            if target.stat().st_size != size:
                raise DataError(f"{archive}: {name!r} ends before its {size} bytes")
    except BaseException as error:
        shutil.rmtree(into, ignore_errors=True)
        if isinstance(error, (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError,
                              RuntimeError, FileExistsError, NotADirectoryError, gzip.BadGzipFile,
                              lzma.LZMAError)):  # fmt: skip
            raise DataError(f"{archive}: a damaged archive: {error}") from error
        raise


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or set(name) & set("\\:\0"):
        raise DataError(f"{archive}: it would write to {name!r}, which is not a plain path within a folder")
    return path


def _tarred(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            _inside(archive, member.name)
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise DataError(
                    f"{archive}: {member.name!r} is a link, a device or a sparse file; data are plain files"
                )
            file = tar.extractfile(tarfile.data_filter(member, str(archive.parent)))  # the standard library's own look
            if file is not None:
                yield member.name, member.size, file


def entries(packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The entries of a zip file, which all begin within it."""
    found = packed.infolist()
    for entry in found:
        if entry.header_offset < 0:  # to go there is an error of the operating system's, as if the disk were broken
            raise zipfile.BadZipFile(f"{entry.filename!r} begins {-entry.header_offset} bytes before the file")
    return found


def _zipped(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with zipfile.ZipFile(archive) as packed:
        for entry in entries(packed):
            _inside(archive, entry.filename)
            if entry.is_dir():
                continue
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise DataError(f"{archive}: {entry.filename!r} is a link; data are plain files")
            with packed.open(entry) as file:
                yield entry.filename, entry.file_size, file
