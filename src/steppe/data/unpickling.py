"""Pickles read as data: Python's own reader, with all calls and most instructions taken away.

`pickle` imports and calls whatever a file names. Here the few names under which arrays are pickled stand for small
classes of this module, which check what they are given. The reader is the one in Python: ten bytes make the one in C
(`pickle.Unpickler`) fill gigabytes with an empty memo, and a deeply nested key makes it overrun the stack.
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
    """The dictionary that a pickle holds, keys as text: values are plain, or arrays."""
    try:
        whole = _Reader(BytesIO(path.read_bytes()), encoding="latin-1").load()
        if not isinstance(whole, dict):
            raise ValueError(f"it holds a {type(whole).__name__}, and a dictionary was expected")
        return {key: value.array if isinstance(value, _Array) else value for key, value in whole.items()}
    except Exception as error:  # bytes that are no pickle make it fail in ways that have no end
        raise DataError(f"{path}: not a pickle of plain data and arrays; nothing in it was run: {error!r}") from error


class _Table(dict[str, Any]):
    """A dictionary whose keys are texts."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_text(key), value)


class _Kind:
    """A dtype as pickled: its code, and its byte order once that is told."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "|"
        if self.code not in NUMBERS:
            raise ValueError(f"an array of {self.code!r}, which are not numbers")

    def told(self, state: Any) -> None:
        self.order = state[1]


class _Array:
    """An array as pickled: nothing at first, then what its state says."""

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[Any] | None = None

    def told(self, state: Any) -> None:
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
    "numpy.core.numeric._frombuffer": lambda *given: _Array().fill(*given),
    "_codecs.encode": lambda text, *_: _text(text).encode("latin-1"),  # how Python 3 writes bytes for Python 2
}


class _Reader(pickle._Unpickler):
    """Knows no other instructions than those that data need."""

    stack: list[Any]
    read: Callable[[int], bytes]
    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for (code,) in (getattr(pickle, name) for name in INSTRUCTIONS.split())
    }

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module}.{name}".replace("numpy._core.", "numpy.core.", 1)  # as numpy 2 calls it
        if asked not in CALLS:
            raise ValueError(f"it asks to run {asked}")
        return CALLS[asked]

    def load_empty_dictionary(self) -> None:
        self.stack.append(_Table())

    def load_bytearray8(self) -> None:
        self.stack.append(self.read(int.from_bytes(self.read(8), "little")))

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (_Array, _Kind)):
            raise ValueError(f"it changes a {type(self.stack[-1]).__name__}")
        self.stack[-1].told(state)

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_dictionary
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.BUILD[0]] = load_build


def _text(x: Any) -> str:
    if not isinstance(x, (str, bytes)):
        raise ValueError(f"a {type(x).__name__} where a text belongs")
    return x.decode("latin-1") if isinstance(x, bytes) else x
