"""Files that are whole or not there: what every write of a run goes through.

No write follows a symbolic link: in a folder that somebody else made it may lead anywhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .._util.files import refuse_link

TEMPORARY = ".tmp"  # ends the name of a file that is being written
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def replace(path: Path, content: bytes) -> None:
    """Puts a file in place at once: before and after a crash, the old file or the new one is there, whole."""
    temporary = path.with_name(path.name + TEMPORARY)
    with _said(path):
        try:
            remove(temporary)
            _write(temporary, content, os.O_EXCL)
            os.replace(temporary, path)
            _settle(path.parent)
        except OSError:
            with suppress(OSError):  # a full disk needs the space
                os.unlink(temporary)
            raise


def link(path: Path, name: Path) -> None:
    """Gives a file a second name at once, in the place of what had it; where there are no links, a copy."""
    temporary = name.with_name(name.name + TEMPORARY)
    remove(temporary)
    try:
        os.link(path, temporary)
    except OSError:
        replace(name, path.read_bytes())
    else:
        move(temporary, name)


def move(path: Path, name: Path) -> None:
    """Gives a file another name, in the place of what had it."""
    with _said(name):
        os.replace(path, name)
        _settle(name.parent)


def append(path: Path, content: bytes) -> int:
    """Adds to the end of a file and returns its length."""
    with _said(path):
        _write(path, content, os.O_APPEND)
        return path.stat().st_size


def cut(path: Path, length: int) -> None:
    """Shortens a file to so many bytes; a file that is not there has none."""
    found = path.stat().st_size if path.exists() else 0
    if found < length:
        raise ValueError(
            f"{path} has {found} bytes, and {length} belong to the checkpoint beside it: the file was changed or "
            "lost. Bring it back, or start the run in another folder."
        )
    if found == length:
        return
    with _said(path):
        handle = os.open(path, os.O_WRONLY | NO_LINKS)
        try:
            os.ftruncate(handle, length)
            os.fsync(handle)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Takes a file away, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _write(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | NO_LINKS | mode, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]  # a disk that fills up takes a part first
        os.fsync(handle)
    finally:
        os.close(handle)


def _settle(folder: Path) -> None:
    """Makes a new name last through a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            refuse_link(path)
        raise OSError(
            error.errno,
            f"{error.strerror or error}: writing {path.name} failed. The run is whole up to its last checkpoint: make "
            "room or mend the disk, and give the same command again. The folder is",
            str(path.parent),
        ) from error
