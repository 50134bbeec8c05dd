"""Atomic writes, and locks of folders."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

PAUSE = 0.05  # seconds between two attempts to lock


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `path` at the end of the block, so that nobody reads half a file."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)  # left by a process that was killed, or a link that leads elsewhere
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


class FolderLocked(RuntimeError):
    """Another process, or another part of this one, has locked the folder; the message names it."""


@contextmanager
def lock_folder(folder: Path, name: str, patience: float = 0.0) -> Iterator[Callable[[], None]]:
    """Locks a folder for this process by the file `name.lock` and, where the system can, by the folder itself.

    Without the second lock, deleting the lock file would let another process in. Windows and some network disks cannot
    lock folders: there the file is the only lock.

    Parameters
    ----------
    folder
        The folder.
    name
        The name of the lock.
    patience
        Seconds to wait for another process that has the lock.

    Yields
    ------
    Callable
        A function that raises if another folder has replaced the locked one.

    Raises
    ------
    FolderLocked
        If another process keeps the lock; the message names that process.

    """
    from filelock import FileLock, Timeout

    lock, owner = folder / f"{name}.lock", folder / f"{name}.holder"
    refuse_link(lock)
    with ExitStack() as stack:
        try:
            file = FileLock(lock)
            file.acquire(timeout=patience)
            stack.callback(file.release)
            stack.enter_context(_flock(folder, patience))
        except Timeout:
            process = owner.read_text(encoding="utf-8") if owner.exists() else "another process"
            raise FolderLocked(process) from None
        locked = _identity(folder)

        def refuse_another() -> None:
            if _identity(folder) != locked:
                raise RuntimeError(f"{folder} was removed or replaced by another folder: nothing is written there")

        with atomic_write(owner) as text:
            text.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield refuse_another
        finally:
            if _identity(folder) == locked:
                with suppress(OSError):  # of a broken disk, on which an earlier write has raised
                    owner.unlink(missing_ok=True)


def is_locked(folder: Path, name: str) -> bool:
    """Whether a process has locked a folder by that name."""
    from filelock import FileLock, Timeout

    if not folder.exists():
        return False
    try:
        with _flock(folder, 0.0):
            if not (folder / f"{name}.lock").exists():
                return False
            with FileLock(folder / f"{name}.lock").acquire(timeout=0):
                return False
    except Timeout:
        return True


def refuse_link(path: Path) -> None:
    """Raises OSError for a symbolic link: in a folder that somebody else made it may lead anywhere."""
    if path.is_symlink():
        raise OSError(
            errno.ELOOP, "steppe does not write through symbolic links: remove it, or choose another out", str(path)
        )


@contextmanager
def _flock(folder: Path, patience: float) -> Iterator[None]:
    """Locks the folder itself; raises Timeout if another process has it."""
    if fcntl is None:  # pragma: no cover
        yield
        return
    from filelock import Timeout

    end, handle = time.monotonic() + patience, os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise Timeout(str(folder)) from None
                time.sleep(PAUSE)
            except OSError:  # the file system cannot lock folders
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
