"""Reading pickles of plain data and arrays without running code: an unpickler with an allow-list.

`pickle` imports and calls whatever a file names. Here the few names under which arrays are pickled map to small classes
of this module, which validate their arguments. The base is Python's own implementation: ten bytes make the one in C
(`pickle.Unpickler`) allocate gigabytes for an empty memo, and a deeply nested key makes it overflow the stack.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .errors import DataError

NUMBERS = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
INSTRUCTIONS = (
    "PROTO FRAME STOP NONE NEWTRUE NEWFALSE EMPTY_LIST EMPTY_TUPLE MARK TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS "
    "SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BININT BININT1 BININT2 "
    "LONG1 LONG4 BINFLOAT SHORT_BINSTRING BINSTRING SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES "
    "BINBYTES8"
)


def table(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle, with keys as str; values are plain data or arrays."""
    try:
        whole = _Reader(BytesIO(path.read_bytes()), encoding="latin-1").load()
        if not isinstance(whole, dict):
            raise ValueError(f"it holds a {type(whole).__name__}, and a dictionary was expected")
        return {key: value.array if isinstance(value, _Array) else value for key, value in whole.items()}
    except Exception as error:  # bytes that are no pickle raise errors of many types
        raise DataError(f"{path}: not a pickle of plain data and arrays; nothing in it was run: {error!r}") from error


class _Table(dict[str, Any]):
    """A dictionary whose keys are str."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_text(key), value)


class _Kind:
    """A pickled dtype: its code, and the byte order that its state sets."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "|"
        if self.code not in NUMBERS:
            raise ValueError(f"an array of {self.code!r}, which are not numbers")

    def set_state(self, state: Any) -> None:
        self.order = state[1]


class _Array:
    """A pickled array: empty until its state sets it."""

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[Any] | None = None

    def set_state(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.fill(raw, kind, shape, "F" if fortran else "C")

    def fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
        if not isinstance(kind, _Kind) or kind.order not in ("<", ">", "|") or not isinstance(shape, tuple):
            raise ValueError("an array of no known type or shape")
        octets = raw.encode("latin-1") if isinstance(raw, str) else raw
        if not isinstance(octets, bytes):
            raise ValueError(f"an array made of a {type(raw).__name__}")
        self.array = np.frombuffer(octets, kind.order + kind.code).reshape(shape, order="F" if order == "F" else "C")
        if self.array.shape != shape:
            raise ValueError(f"{shape} is no shape")
        return self


CALLS = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Kind,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": lambda *args: _Array().fill(*args),
    "_codecs.encode": lambda text, *_: _text(text).encode("latin-1"),  # how Python 3 writes bytes for Python 2
}


class _Reader(pickle._Unpickler):
    """An unpickler with only the instructions that data need."""

    stack: list[Any]
    read: Callable[[int], bytes]
    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for (code,) in (getattr(pickle, name) for name in INSTRUCTIONS.split())
    }

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}".replace("numpy._core.", "numpy.core.", 1)  # as numpy 2 calls it
        if full_name not in CALLS:
            raise ValueError(f"it names {full_name}, which is not allowed")
        return CALLS[full_name]

    def load_empty_dictionary(self) -> None:
        self.stack.append(_Table())

    def load_bytearray8(self) -> None:
        self.stack.append(self.read(int.from_bytes(self.read(8), "little")))

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (_Array, _Kind)):
            raise ValueError(f"it changes a {type(self.stack[-1]).__name__}")
        self.stack[-1].set_state(state)

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_dictionary
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.BUILD[0]] = load_build


def _text(x: Any) -> str:
    if not isinstance(x, (str, bytes)):
        raise ValueError(f"a {type(x).__name__} where a str is expected")
    return x.decode("latin-1") if isinstance(x, bytes) else x
