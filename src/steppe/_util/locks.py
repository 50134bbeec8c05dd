"""Locks of folders: one process at a time, until it releases the lock or ends.

The lock is a file and, where the system can, the folder itself: without the second, deleting the file would let another
process in. Windows and some network disks cannot lock folders: there the file is the only lock.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .files import refuse_link, replace

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

PAUSE = 0.05  # seconds between two tries


class FolderLocked(RuntimeError):
    """Another process, or another part of this one, has the folder; the message names it."""


@contextmanager
def lock_folder(folder: Path, name: str, patience: float = 0.0) -> Iterator[Callable[[], None]]:
    """Lock a folder by the file `name.lock`, or raise `FolderLocked` with the name of the process that has it.

    Yields a function that raises if another folder has replaced the locked one.
    """
    lock, holder = folder / f"{name}.lock", folder / f"{name}.holder"
    refuse_link(lock)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock, timeout=patience))
            stack.enter_context(_locked(folder, patience))
        except Timeout:
            owner = holder.read_text(encoding="utf-8") if holder.exists() else "another process"
            raise FolderLocked(owner) from None
        locked = _identity(folder)

        def refuse_another() -> None:
            if _identity(folder) != locked:
                raise RuntimeError(f"{folder} was removed or replaced by another folder: nothing is written there")

        replace(holder, f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield refuse_another
        finally:
            if _identity(folder) == locked:
                with suppress(OSError):  # a broken disk has raised before
                    holder.unlink(missing_ok=True)


def is_locked(folder: Path, name: str) -> bool:
    """Return whether any process holds a folder by that lock."""
    if not folder.exists():
        return False
    try:
        with _locked(folder, 0.0):
            if not (folder / f"{name}.lock").exists():
                return False
            with FileLock(folder / f"{name}.lock").acquire(timeout=0):
                return False
    except Timeout:
        return True


@contextmanager
def _locked(folder: Path, patience: float) -> Iterator[None]:
    """Lock the folder itself in a block; raise Timeout if another process has it."""
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
                    raise Timeout(str(folder)) from None
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
