"""Writes that leave the old file or the new one, never half of one, and locks of folders. No write follows a link.

A lock is a file and, where the system can, the folder itself: without the second, deleting the file would let another
process in. Windows and some network disks cannot lock folders: there the file is the only lock.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from io import BytesIO
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tmp"  # suffix of a file that is being written
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
PAUSE = 0.05  # seconds between two tries to lock a folder


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


def write_text(path: Path, text: str) -> None:
    """Write a text atomically, after the folder of its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, text.encode())


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
    with _error_context(path), _synced(path, os.O_WRONLY | NO_LINKS) as handle:
        os.ftruncate(handle, length)


def remove(path: Path) -> None:
    """Delete a file if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def check_no_link(path: Path) -> None:
    """Raise if a path is a symbolic link: in a folder from another user it may lead anywhere."""
    if path.is_symlink():
        raise OSError(
            errno.ELOOP, "steppe does not write through symbolic links: remove it, or choose another out", str(path)
        )


def _draft(path: Path) -> Path:
    """Return a temporary name beside a file; processes that write the same file use different ones."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")


def _write(path: Path, content: bytes, mode: int) -> None:
    with _synced(path, os.O_WRONLY | os.O_CREAT | NO_LINKS | mode) as handle:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]  # a disk that fills up writes a part first


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where the system can."""
    if os.name == "posix":
        with _synced(folder, os.O_RDONLY):
            pass


@contextmanager
def _synced(path: Path, flags: int) -> Iterator[int]:
    """Open a file or folder in a block; what the block has written is on the disk when it ends."""
    handle = os.open(path, flags, 0o666)
    try:
        yield handle
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _error_context(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            check_no_link(path)
        raise OSError(
            error.errno,
            f"{error.strerror or error}: cannot write {path.name}. Files written before are complete: free space or "
            "repair the disk, and run the same command again. The folder is",
            str(path.parent),
        ) from error


class FolderLocked(RuntimeError):
    """Another process, or another part of this one, has the folder; the message names it."""


@contextmanager
def lock_folder(folder: Path, name: str, patience: float = 0.0) -> Iterator[Callable[[], None]]:
    """Lock a folder by the file `name.lock`, or raise `FolderLocked` with the name of the process that has it.

    Yields a function that raises if another folder has replaced the locked one.
    """
    from filelock import FileLock, Timeout

    lock, holder = folder / f"{name}.lock", folder / f"{name}.holder"
    check_no_link(lock)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock, timeout=patience))
            stack.enter_context(_locked(folder, patience))
        except (Timeout, FolderLocked):
            owner = holder.read_text(encoding="utf-8") if holder.exists() else "another process"
            raise FolderLocked(owner) from None
        locked = _identity(folder)

        def check_same_folder() -> None:
            if _identity(folder) != locked:
                raise RuntimeError(f"{folder} was removed or replaced by another folder: nothing is written there")

        replace(holder, f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield check_same_folder
        finally:
            if _identity(folder) == locked:
                with suppress(OSError):  # a broken disk has raised before
                    holder.unlink(missing_ok=True)


def is_locked(folder: Path, name: str) -> bool:
    """Return whether any process holds a folder by that lock."""
    from filelock import FileLock, Timeout

    lock = folder / f"{name}.lock"
    try:
        with _locked(folder, 0.0) if folder.exists() else nullcontext():
            if lock.exists():
                with FileLock(lock, timeout=0):
                    pass
    except (Timeout, FolderLocked):
        return True
    return False


@contextmanager
def _locked(folder: Path, patience: float) -> Iterator[None]:
    """Lock the folder itself in a block; raise `FolderLocked` if another process has it."""
    if fcntl is None:  # pragma: no cover
        yield
        return
    end, handle = time.monotonic() + patience, os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise FolderLocked("another process") from None
                time.sleep(PAUSE)
            except OSError:  # a file system that locks no folders
                break
            else:
                break
        yield
    finally:
        os.close(handle)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
