"""Download of published data sets from their official addresses: resumed, verified, and unpacked atomically."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .._util.terminal import Tick, bar, say, style
from .catalogue import DATASETS, File, files
from .dataset import MOST_BYTES, DataError

TRIES = 5  # a broken connection resumes where it broke
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18
MOST_FILES = 500_000  # in an archive; TinyImageNet has 120 thousand
SCHEMES = ("http", "https", "file")


def get(name: str, root: Path | str, progress: bool | None = None, mirror: str | None = None) -> Path:
    """Download a published data set, unpack it and return the root. A data set that is there already is left as it is.

    Parameters
    ----------
    name
        A name in `DATASETS`, or `cifar10-c`, `cifar100-c` or `tiny-imagenet-c`.
    root
        The folder to put it in.
    progress
        Show progress: by default where stderr is a terminal; True also elsewhere; False never.
    mirror
        Another address, or a folder, with files of the same names.

    Examples
    --------
    >>> round(steppe.data.DATASETS["mnist"].size / 1e6, 1)  # megabytes to download
    11.6
    >>> root = steppe.data.get("mnist", "data")  # doctest: +SKIP
    >>> splits = steppe.data.load("mnist", root)  # doctest: +SKIP

    """
    from filelock import FileLock, Timeout

    published, root = files(name), Path(root).expanduser()
    addresses = [_address(file, mirror) for file in published]
    if _whole(name, root):
        return root
    root.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(root / f".{name}.lock").acquire(timeout=0)
    except Timeout:
        raise RuntimeError(f"another process is downloading {name} to {root}; wait for it, or stop it") from None
    with lock:
        for file, address in zip(published, addresses, strict=True):
            target = root / file.place
            if file.holds and (root / file.result).exists():
                if len(published) > 1:  # an earlier call has unpacked this one of several archives
                    continue
                raise DataError(f"{root / file.result}: it exists, but is incomplete; move it away and call again")
            was_there = target.is_file()
            fetch(file, target, address, progress)
            if file.holds:
                _unpacked(target, file.holds)
                if not was_there:  # an archive of the user stays
                    target.unlink()
    return root


def fetch(file: File, target: Path, address: str, progress: bool | None = None) -> Path:
    """Download one file. Until it is complete it is a `.part` beside its place, from which a later call resumes."""
    if target.is_file():
        if wrong := file.differs(target):
            raise DataError(f"{target}: it is not the published file: {wrong}; move it away and call again")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    begun, free = _size(part), shutil.disk_usage(target.parent).free
    if free < file.size - begun:
        why = f"{file.size - begun:,} bytes are missing, and only {free:,} are free"
        raise OSError(errno.ENOSPC, why, str(target.parent))
    with _progress(file.name, progress) as tick:
        _collect(file, part, address, tick)
        if begun and file.differs(part):  # the old part may be of another file: once more from the start
            part.unlink()
            _collect(file, part, address, tick)
        if wrong := file.differs(part):
            part.unlink()
            raise DataError(f"{target}: the file from {address} is not the published one, and was removed: {wrong}")
    os.replace(part, target)
    return target


def _collect(file: File, part: Path, address: str, tick: Tick) -> None:
    """Append to a part file until it has the size of the file."""
    if _size(part) > file.size:
        part.unlink()
    for _ in range(TRIES):
        begun = _size(part)
        if begun == file.size:
            return
        try:
            _receive(file, part, address, begun, tick)
        except HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not begun:
                raise ConnectionError(f"{address}: the server answered {error.code} {error.reason}") from error
            part.unlink()  # the server's file ends before ours: ours is another
        except (http.client.HTTPException, URLError, ConnectionError, TimeoutError) as error:
            if (size := _size(part)) <= begun:
                why = getattr(error, "reason", None) or error
                raise ConnectionError(f"{address}: {why}; call again to resume from {size:,} bytes") from error
    if (size := _size(part)) != file.size:
        so_far = f"ended after {size:,} of {file.size:,} bytes"
        raise ConnectionError(f"{address}: {TRIES} tries {so_far}; call again to resume")


def _receive(file: File, part: Path, address: str, begun: int, tick: Tick) -> None:
    request = Request(address, headers={"Range": f"bytes={begun}-"} if begun else {})
    with urlopen(request, timeout=TIMEOUT) as answer:  # follows redirections, never to local files
        so_far = 0  # a server without ranges sends everything again
        if answer.status == HTTPStatus.PARTIAL_CONTENT:
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                part.unlink(missing_ok=True)  # another range than requested: once more, from the start
                return
            so_far = begun
        length = answer.headers.get("Content-Length", "")
        if length.isdecimal() and (total := so_far + int(length)) != file.size:  # perhaps a login page
            raise DataError(f"{address}: the server has {total:,} bytes, and the published file {file.size:,}")
        with part.open("ab", buffering=0) as out:
            out.truncate(so_far)
            while chunk := answer.read(CHUNK):
                so_far += len(chunk)
                if so_far > file.size:
                    part.unlink()
                    raise DataError(f"{address}: it has more than the published {file.size:,} bytes: another file")
                _write(out, chunk, part)
                tick(so_far, file.size)
            os.fsync(out.fileno())


def _write(out: FileIO, chunk: bytes, part: Path) -> None:
    left = memoryview(chunk)
    try:
        while left:
            left = left[out.write(left) :]
    except OSError as error:
        why = f"{error.strerror}; the part so far is kept; make room and call again to resume"
        raise OSError(error.errno, why, str(part)) from error


def _address(file: File, mirror: str | None) -> str:
    if mirror is None:
        return file.url
    base = mirror if "://" in mirror else Path(mirror).resolve().as_uri()
    if urlsplit(base).scheme not in SCHEMES:
        raise ValueError(f"a mirror is a folder or an address with {', '.join(SCHEMES)}, not {mirror!r}")
    return f"{base.rstrip('/')}/{file.name}"


def _whole(name: str, root: Path) -> bool:
    if name not in DATASETS:
        return all((root / file.holds / file.proof).exists() for file in files(name))
    try:
        DATASETS[name].find(root)
    except FileNotFoundError:
        return False
    return True


def _unpacked(archive: Path, holds: str) -> None:
    root = archive.parent
    scratch = root / f".unpacking-{holds}"
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed; this one holds the lock
    unpack(archive, scratch)
    try:
        if not (scratch / holds).is_dir():
            raise DataError(f"{archive}: it does not hold the folder {holds!r}")
        os.replace(scratch / holds, root / holds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def unpack(archive: Path, into: Path, most: int = MOST_BYTES) -> None:
    """Unpack a .zip or a .tar, plain or compressed, into a new folder; on an error remove the folder."""
    into.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                _check_archive_size([entry.file_size for entry in packed.infolist()], most)
                packed.extractall(into)  # removes leading slashes and dots from names
        else:
            with tarfile.open(archive) as tar:
                _check_archive_size([member.size for member in tar], most)
                tar.extractall(into, filter="data")  # raises for paths outside the folder, and for devices
    except BaseException as error:
        shutil.rmtree(into, ignore_errors=True)
        if isinstance(error, Exception):  # damaged archives raise errors of many types
            raise DataError(f"{archive}: it cannot be unpacked: {error}") from error
        raise


def _check_archive_size(sizes: Sequence[int], most: int) -> None:
    if sum(sizes) > most or len(sizes) > MOST_FILES:
        raise ValueError(f"it holds more than {most:,} bytes or {MOST_FILES:,} files")


@contextmanager
def _progress(name: str, progress: bool | None) -> Iterator[Tick]:
    """Yield a function of bytes so far and bytes in all that updates a bar on a terminal."""
    shown = style(progress)
    if shown == "lines":
        say(f"{name} ...", error=True)
    if shown != "bars":
        yield lambda done, total: None
        return
    with bar("bytes", "speed", "remaining") as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
