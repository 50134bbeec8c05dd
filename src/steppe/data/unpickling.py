"""Pickles read as data: a small machine that knows numbers, text, containers and arrays, and runs nothing.

`pickle` imports and calls whatever a file names. This reader has no way to: the few names under which arrays are
pickled are only compared, and every instruction that data do not need ends the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from pickletools import genops
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .damage import DataError

MOST_STEPS = 10_000_000  # CIFAR-100's training file takes half a million

NUMBERS = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})
RECONSTRUCT = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})
FROM_BUFFER = frozenset({"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"})


class Name(NamedTuple):
    """Something that a pickle asks to be imported: here only its words."""

    words: str


class Kind:
    """A dtype as pickled: its code, and its byte order once that is told."""

    def __init__(self, code: str) -> None:
        if code not in NUMBERS:
            raise ValueError(f"an array of {code!r}, which are not numbers")
        self.code, self.order = code, "|"


class Held:
    """An array as pickled: nothing at first, then what its state says."""

    def __init__(self, array: NDArray[Any] | None = None) -> None:
        self.array = array


MARK = Name("mark")


def table(path: Path) -> dict[str, Any]:
    """The dictionary that a pickle holds, keys as text: values are plain, or arrays."""
    try:
        whole = Machine().run(genops(path.read_bytes()))
        if not isinstance(whole, dict):
            raise ValueError(f"it holds a {type(whole).__name__}, and a dictionary was expected")
        return {key: value.array if isinstance(value, Held) else value for key, value in whole.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{path}: not a pickle of plain data and arrays; nothing in it was run: {error}") from error


class Machine:
    """A stack, a memory, and the few instructions that data need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, steps: Iterable[tuple[Any, Any, Any]]) -> Any:
        """What is on top of the stack in the end."""
        for number, (step, value, _) in enumerate(steps):
            if step.name == "STOP":
                return self.stack[-1]
            if step.name not in INSTRUCTIONS or number > MOST_STEPS:
                raise ValueError(f"the instruction {step.name}, as number {number:,}, has no place in data")
            INSTRUCTIONS[step.name](self, value)
        raise ValueError("it has no end")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes more than it holds")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def pop_to_mark(self) -> list[Any]:
        count = 0
        while self.stack[-1 - count] is not MARK:  # IndexError where there is none
            count += 1
        taken = self.pop(count)
        self.stack.pop()
        return taken

    def append(self, items: list[Any]) -> None:
        _expect(self.stack[-1], list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        table = _expect(self.stack[-1], dict)
        for key, item in zip(items[::2], items[1::2], strict=True):
            table[_text(key)] = item

    def put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def reduce(self) -> None:
        """Where pickle calls something: here the four names of arrays and bytes are understood, and no other."""
        what, given = self.pop(2)
        words, given = _expect(what, Name).words, _expect(given, tuple)
        if words in RECONSTRUCT:
            self.push(Held())
        elif words in FROM_BUFFER:
            self.push(Held(_array(*given)))
        elif words == "numpy dtype":
            self.push(Kind(_text(given[0])))
        elif words == "_codecs encode":  # how Python 3 writes bytes in the protocol of Python 2
            self.push(_text(given[0]).encode("latin-1"))
        else:
            raise ValueError(f"it asks to run {words.replace(' ', '.')!r}")

    def build(self) -> None:
        (state,) = self.pop(1)
        what, state = self.stack[-1], _expect(state, tuple)
        if isinstance(what, Kind):
            what.order = _text(state[1])
        else:
            _, shape, kind, fortran, raw = state
            _expect(what, Held).array = _array(raw, kind, shape, "F" if fortran else "C")


INSTRUCTIONS: dict[str, Callable[[Machine, Any], object]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "MARK": lambda m, _: m.push(MARK),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, _: m.push(tuple(m.pop(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.pop(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.pop(3))),
    "APPEND": lambda m, _: m.append(m.pop(1)),
    "APPENDS": lambda m, _: m.append(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "BINPUT": Machine.put,
    "LONG_BINPUT": Machine.put,
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "BINGET": lambda m, place: m.push(m.memo[place]),
    "LONG_BINGET": lambda m, place: m.push(m.memo[place]),
    "GLOBAL": lambda m, words: m.push(Name(words)),
    "STACK_GLOBAL": lambda m, _: m.push(Name(" ".join(map(_text, m.pop(2))))),
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
} | dict.fromkeys(
    ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE",
     "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    Machine.push,
)  # fmt: skip


def _array(raw: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    if _expect(kind, Kind).order not in ("<", ">", "|"):
        raise ValueError(f"{kind.order!r} is no byte order")
    dtype = np.dtype(kind.order + kind.code)
    octets = raw.encode("latin-1") if isinstance(raw, str) else bytes(_expect(raw, (bytes, bytearray)))
    if not all(type(axis) is int and axis >= 0 for axis in _expect(shape, tuple)):
        raise ValueError("an array whose shape is not of whole numbers")
    return np.frombuffer(octets, dtype).reshape(shape, order="F" if order == "F" else "C")  # raises where sizes differ


def _text(x: Any) -> str:
    return x.decode("latin-1") if isinstance(x, bytes) else str(_expect(x, str))


def _expect(x: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(x, kind):
        raise ValueError(f"a {type(x).__name__} where it does not belong")
    return x
