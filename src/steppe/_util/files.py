"""Writes that leave the old file or the new one, never half of one. No write follows a symbolic link."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

TEMPORARY = ".tmp"  # suffix of a file that is being written
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # not on Windows


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash the old content or the new content is there, complete."""
    draft = _draft(path)
    with _error_context(path):
        try:
            remove(draft)
            _write(draft, content, os.O_EXCL)
            os.replace(draft, path)
            _sync_folder(path.parent)
        except OSError:
            with suppress(OSError):  # a full disk needs the space
                os.unlink(draft)
            raise


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BytesIO]:
    """Collect content in memory and write the file atomically when the block ends without an error."""
    content = BytesIO()
    yield content
    # shares its memory, but unlike a view it does not keep the content of a failed write from being closed
    replace(Path(path), content.getvalue())


def link(path: Path, name: Path) -> None:
    """Give a file a second name atomically, replacing what had it; copy where hard links do not exist."""
    draft = _draft(name)
    remove(draft)
    try:
        os.link(path, draft)
    except OSError:
        replace(name, path.read_bytes())
    else:
        move(draft, name)


def move(path: Path, name: Path) -> None:
    """Rename a file, replacing what had the name."""
    with _error_context(name):
        os.replace(path, name)
        _sync_folder(name.parent)


def append(path: Path, content: bytes) -> int:
    """Append to a file and return its new length."""
    with _error_context(path):
        _write(path, content, os.O_APPEND)
        return path.stat().st_size


def truncate(path: Path, length: int) -> None:
    """Shorten a file to `length` bytes. A missing file has length 0; a shorter file raises ValueError."""
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise ValueError(f"{path} has {size} bytes, fewer than {length}")
    if size == length:
        return
    with _error_context(path):
        handle = os.open(path, os.O_WRONLY | NO_LINKS)
        try:
            os.ftruncate(handle, length)
            os.fsync(handle)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Delete a file if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def refuse_link(path: Path) -> None:
    """Raise if a path is a symbolic link: in a folder from another user it may lead anywhere."""
    if path.is_symlink():
        raise OSError(
            errno.ELOOP, "steppe does not write through symbolic links: remove it, or choose another out", str(path)
        )


def _draft(path: Path) -> Path:
    """Return a temporary name beside a file; processes that write the same file use different ones."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")


def _write(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | NO_LINKS | mode, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]  # a disk that fills up writes a part first
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _error_context(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            refuse_link(path)
        raise OSError(
            error.errno,
            f"{error.strerror or error}: cannot write {path.name}. Files written before are complete: free space or "
            "repair the disk, and run the same command again. The folder is",
            str(path.parent),
        ) from error
