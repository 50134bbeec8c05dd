"""Arrays from files of unknown origin: IDX, .npy, .npz, pickle and .mat.

Sizes are checked before anything is read, nothing in a file runs, and every damaged file raises one DataError. Run as a
module, this reads one .mat file and prints it as JSON.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .dataset import MOST_BYTES, DataError

# Photographs compress twofold, drawn digits tenfold, a decompression bomb a thousandfold. Small files may be empty.
MOST_RATIO = 200
SMALL = 64 * 2**20


def check_size(path: Path, declared: int, stored: int, most: int = MOST_BYTES) -> None:
    """Raise DataError, before anything is read, if a file declares more bytes than a data set has."""
    if declared > most:
        raise DataError(f"{path}: it declares {declared:,} bytes, and the limit is {most:,}; it is damaged, or a bomb")
    if declared > SMALL and declared > MOST_RATIO * stored:
        raise DataError(f"{path}: it declares {declared:,} bytes and stores {stored:,}; it is a decompression bomb")


@contextmanager
def _as_data_error(where: Path | str, problem: str = "not readable arrays of numbers") -> Iterator[None]:
    """Turn the errors of many types that damaged bytes raise into DataError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about headers of Python 2, and reads them
            yield
    except (DataError, FileNotFoundError):
        raise
    except Exception as error:
        why = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise DataError(f"{where}: {problem}: {why}") from error


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the array of bytes in an IDX file, plain or gzipped."""
    with path.open("rb") as plain:
        zipped = plain.read(2) == b"\x1f\x8b"
    with _as_data_error(path, "not a readable IDX file"), gzip.open(path) if zipped else path.open("rb") as file:
        head = file.read(4)
        axes = head[3] if len(head) == 4 else 0
        if head[:3] != b"\0\0\x08" or not 1 <= axes <= 4:  # 8: unsigned bytes
            raise DataError(f"{path}: not an IDX file of bytes: it begins with {head.hex(' ') or 'nothing'}")
        lengths = file.read(4 * axes)
        if len(lengths) < 4 * axes:
            raise DataError(f"{path}: it ends inside its header")
        shape = struct.unpack(f">{axes}I", lengths)
        declared = prod(shape)
        check_size(path, declared, path.stat().st_size)
        body = file.read(declared + 1)
    if len(body) != declared:
        held = "more" if len(body) > declared else len(body)
        raise DataError(f"{path}: {shape} bytes are declared, {declared} in all, and the file holds {held}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def map_npy(path: Path) -> NDArray[Any]:
    """Memory-map the array of a .npy file."""
    with _as_data_error(path):
        array = npy.open_memmap(path, "r")
        stored = path.stat().st_size - array.offset
        if stored != array.nbytes:
            declared = f"{array.nbytes} bytes, shape {array.shape}"
            raise ValueError(f"its header declares {declared}, and the file holds {stored}")
        return array


def read_npz(path: Path, most: int = MOST_BYTES) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .npz file by name; raise DataError above `most` bytes."""
    arrays = {}
    with _as_data_error(path), zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        stored = min(path.stat().st_size, sum(entry.compress_size for entry in entries))
        check_size(path, sum(entry.file_size for entry in entries), stored, most)
        for entry in entries:
            with _as_data_error(f"{path}, {entry.filename}"):
                content = BytesIO(archive.read(entry))  # at most what it declares, with a valid checksum
                array = npy.read_array(content, allow_pickle=False)
                if content.tell() != entry.file_size:
                    declared = f"{content.tell():,} bytes, shape {array.shape}"
                    raise ValueError(f"its header declares {declared}, and the file has {entry.file_size:,}")
                arrays[entry.filename.removesuffix(".npy")] = array
    return arrays


# -- pickles ----------------------------------------------------------------------------------------------------------

NUMBERS = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
RECONSTRUCT, FROM_BUFFER = "numpy.core.multiarray._reconstruct", "numpy.core.numeric._frombuffer"
ENCODE = "_codecs.encode"  # how Python 3 writes bytes for Python 2
NAMES = frozenset({RECONSTRUCT, FROM_BUFFER, ENCODE, "numpy.ndarray", "numpy.dtype"})
INSTRUCTIONS = (
    "PROTO FRAME STOP NONE NEWTRUE NEWFALSE EMPTY_LIST EMPTY_TUPLE MARK TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS "
    "SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD BININT BININT1 "
    "BININT2 LONG1 LONG4 BINFLOAT SHORT_BINSTRING BINSTRING SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES "
    "BINBYTES BINBYTES8"
)


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle of plain data and arrays, with keys as str; nothing that it names is imported."""
    with _as_data_error(path, "not a pickle of plain data and arrays; nothing in it was run"):
        content = _Unpickler(BytesIO(path.read_bytes()), encoding="latin-1").load()
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, and a dictionary was expected")
        return {key: value.array() if isinstance(value, _Recorded) else value for key, value in content.items()}


class _Recorded:
    """A name in a pickle, or a call of it: recorded with its arguments and state, not executed."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name, self.args = name, args
        self.state: Any = None

    def __call__(self, *args: Any) -> Any:
        return _text(args[0]).encode("latin-1") if self.name == ENCODE else _Recorded(self.name, args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> NDArray[Any]:
        """Return the array that the call would make."""
        if self.name == FROM_BUFFER:
            raw, dtype, shape, order = self.args
        else:
            _, shape, dtype, is_fortran, raw = self.state
            order = "F" if is_fortran else "C"
        code, byte_order = _text(dtype.args[0]), dtype.state[1]
        if code not in NUMBERS or byte_order not in ("<", ">", "|"):
            raise ValueError(f"an array of {code!r}, which are not numbers")
        octets = raw.encode("latin-1") if isinstance(raw, str) else raw
        array = np.frombuffer(octets, byte_order + code).reshape(shape, order="F" if order == "F" else "C")
        if array.shape != shape:
            raise ValueError("the shape of an array is not a tuple of its lengths")
        return array


class _Table(dict[str, Any]):
    """A dictionary with text as keys: hashing a nested tuple may overflow the stack or take for ever."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_text(key), value)


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler, with only the instructions that data need.

    Not the one in C: ten bytes make it allocate gigabytes for an empty memo.
    """

    stack: list[Any]
    read: Callable[[int], bytes]
    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for (code,) in (getattr(pickle, name) for name in INSTRUCTIONS.split())
    }

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}".replace("numpy._core.", "numpy.core.", 1)  # as numpy 2 calls it
        if full_name not in NAMES:
            raise ValueError(f"it names {full_name}, which is not allowed")
        return _Recorded(full_name)

    def load_empty_dictionary(self) -> None:
        self.stack.append(_Table())

    def load_bytearray8(self) -> None:  # the original allocates whatever length is declared
        self.stack.append(self.read(int.from_bytes(self.read(8), "little")))

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_dictionary
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _text(x: Any) -> str:
    if not isinstance(x, (str, bytes)):
        raise ValueError(f"a {type(x).__name__} where a str is expected")
    return x.decode("latin-1") if isinstance(x, bytes) else x


# -- .mat files, read by scipy in a process of its own: some damaged files crash its reader ---------------------------

MOST_STORED = 16 << 20  # bytes of a file: lists of labels are far smaller
MOST_MEMORY = 4 << 30  # of the process: a small compressed file may declare much
SECONDS = 120.0


def read_mat(path: Path, *names: str) -> dict[str, list[Any]]:
    """Read variables of a small .mat file as flat lists of numbers and strings, and structs as dictionaries.

    Parameters
    ----------
    path
        The file.
    *names
        The variables, all of which have to be there.

    """
    if (size := path.stat().st_size) > MOST_STORED:
        raise DataError(f"{path}: it has {size:,} bytes, and lists of labels have less than {MOST_STORED:,}")
    command = [sys.executable, "-m", __name__, str(path), *names]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=True)
        content: dict[str, list[Any]] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or [f"the reader ended with status {error.returncode}"])[-1]
        raise DataError(f"{path}: not a readable .mat file: {why}") from None
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise DataError(f"{path}: not a readable .mat file: {error}") from error
    if missing := [name for name in names if name not in content]:
        raise DataError(f"{path}: it has no variable {', '.join(missing)}")
    return content


def _plain(value: Any) -> Any:
    """Return arrays as flat lists, and records as dictionaries."""
    if isinstance(value, np.void) and value.dtype.names:
        return {name: _plain(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.reshape(-1)]
    return value.item() if isinstance(value, np.generic) else value


def _print_mat(path: str, *names: str) -> None:
    from scipy.io import loadmat

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("ignore")
    content = loadmat(path, variable_names=names, chars_as_strings=True)
    json.dump({name: _plain(content[name]) for name in names if name in content}, sys.stdout)


if __name__ == "__main__":
    _print_mat(*sys.argv[1:])
