"""Published data sets, fetched from their official addresses: resumed, checked, and never half in place."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .archives import unpack
from .catalogue import CATALOGUE, File, files
from .damage import DataError
from .transfers import transfer

TRIES = 5  # a connection that breaks is taken up again where it broke
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18
SCHEMES = ("http", "https", "file")
Tick = Callable[[int, int], object]  # bytes so far, bytes in all


def get(name: str, root: Path | str, progress: bool | None = None, mirror: str | None = None) -> Path:
    """Puts a published data set under the root, unpacked and ready to load, and returns the root.

    What is there already is left as it is. `mirror` is another address, or a folder, that has files of the same names.
    """
    from filelock import FileLock, Timeout

    wanted, root = files(name), Path(root).expanduser()
    addresses = [_address(file, mirror) for file in wanted]
    if _whole(name, root):
        return root
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(root / f".{name}.lock", timeout=0))
        except Timeout:
            raise RuntimeError(f"another process is downloading {name} to {root}; wait for it, or stop it") from None
        for file, address in zip(wanted, addresses, strict=True):
            target = root / file.place
            if file.holds and (root / file.holds).exists():
                raise DataError(f"{root / file.holds}: it is there, but not whole; move it away and call again")
            was_there = target.is_file()
            fetch(file, target, address, progress)
            if file.holds:
                _unpacked(target, root, file.holds)
                if not was_there:  # an archive that somebody put there stays
                    target.unlink()
    return root


def fetch(file: File, target: Path, address: str, progress: bool | None = None) -> Path:
    """One file, in place only when whole; until then a `.part` beside it, which a later call goes on with."""
    if target.is_file():
        if wrong := file.differs(target):
            raise DataError(f"{target}: it is not the published file: {wrong}; move it away and call again")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    begun = _size(part)
    _room(file.size - begun, target.parent)
    with transfer(file.name, progress) as tick:
        _collect(file, part, address, tick)
        if begun and file.differs(part):  # what was there from before may have been another file's: once from the start
            part.unlink()
            _collect(file, part, address, tick)
        if wrong := file.differs(part):
            part.unlink()
            raise DataError(f"{target}: what came from {address} is not the published file, and was removed: {wrong}")
    os.replace(part, target)
    return target


def _collect(file: File, part: Path, address: str, tick: Tick) -> None:
    """Brings a part file to the size of the file, going on where it ends."""
    if _size(part) > file.size:
        part.unlink()
    for _ in range(TRIES):
        begun = _size(part)
        if begun == file.size:
            return
        try:
            _receive(file, part, address, begun, tick)
        except HTTPError as error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and begun:
                part.unlink()  # the server's file ends before ours: ours is another
                continue
            raise ConnectionError(f"{address}: the server answered {error.code} {error.reason}") from error
        except (http.client.HTTPException, URLError, ConnectionError, TimeoutError) as error:
            if _size(part) > begun:
                continue
            why = getattr(error, "reason", None) or error
            raise ConnectionError(f"{address}: {why}; call again to go on from {_size(part):,} bytes") from error
    if _size(part) != file.size:
        raise ConnectionError(
            f"{address}: it ended after {_size(part):,} of {file.size:,} bytes, {TRIES} times; call again to go on"
        )


def _receive(file: File, part: Path, address: str, begun: int, tick: Tick) -> None:
    request = Request(address, headers={"Range": f"bytes={begun}-"} if begun else {})
    with urlopen(request, timeout=TIMEOUT) as answer:  # follows redirections, never to files of this machine
        so_far = 0  # a server that knows no ranges sends everything again
        if answer.status == HTTPStatus.PARTIAL_CONTENT:
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                part.unlink(missing_ok=True)  # not the range that was asked for: once more, from the start
                return
            so_far = begun
        length = answer.headers.get("Content-Length", "")
        if length.isdecimal() and so_far + int(length) != file.size:  # perhaps a page to log in
            raise DataError(
                f"{address}: the server has {so_far + int(length):,} bytes, and the published file {file.size:,}"
            )
        with part.open("ab", buffering=0) as out:
            out.truncate(so_far)
            while chunk := answer.read(CHUNK):
                so_far += len(chunk)
                if so_far > file.size:
                    part.unlink()
                    raise DataError(f"{address}: more than the published {file.size:,} bytes came; it is another file")
                _write(out, chunk, part)
                tick(so_far, file.size)
            os.fsync(out.fileno())


def _write(out: FileIO, chunk: bytes, part: Path) -> None:
    left = memoryview(chunk)
    try:
        while left:
            left = left[out.write(left) :]
    except OSError as error:
        why = f"{error.strerror}; what came so far stays, make room and call again"
        raise OSError(error.errno, why, str(part)) from error


def _address(file: File, mirror: str | None) -> str:
    if mirror is None:
        return file.url
    base = mirror if "://" in mirror else Path(mirror).resolve().as_uri()
    if urlsplit(base).scheme not in SCHEMES:
        raise ValueError(f"a mirror is a folder or an address with {', '.join(SCHEMES)}, and {mirror!r} was given")
    return f"{base.rstrip('/')}/{file.name}"


def _whole(name: str, root: Path) -> bool:
    if name not in CATALOGUE:
        return all((root / file.holds / "labels.npy").is_file() for file in files(name))
    try:
        CATALOGUE[name].find(root)
    except FileNotFoundError:
        return False
    return True


def _unpacked(archive: Path, root: Path, holds: str) -> None:
    scratch = root / f".unpacking-{holds}"
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed; we hold the lock
    unpack(archive, scratch)
    try:
        if not (scratch / holds).is_dir():
            raise DataError(f"{archive}: it does not hold the folder {holds!r}")
        os.replace(scratch / holds, root / holds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _room(needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are still to come, and only {free:,} are free", str(folder))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
