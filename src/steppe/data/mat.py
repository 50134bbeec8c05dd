"""Arrays of numbers from MATLAB files of level 5 to 7.2, by hand: scipy's reader kills the process on some damage."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .damage import DataError, affordable

# the tables "Data Types" and "Array Types" of MathWorks' "MAT-File Format"
STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
NUMBERS = {
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
BYTES, INTS, WORDS, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
COMPLEX = 0x800
ORDERS = {b"IM": "<", b"MI": ">"}  # the letters MI as a number, in the order of the machine that wrote them


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """The named arrays of a file."""
    held: dict[str, NDArray[Any] | None] = {}
    try:
        for name, values in _variables(path):
            held.setdefault(name, values)
    except (ValueError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a readable .mat file (version 5 to 7.2): {error}") from error
    found = []
    for name in names:
        if name not in held:
            raise DataError(f"{path}: it has no variable {name!r}, only {', '.join(sorted(held)) or 'nothing'}")
        values = held[name]
        if values is None:
            raise DataError(f"{path}: {name} should be an array of real numbers, and is something else")
        found.append(values)
    return found


def _variables(path: Path) -> Iterator[tuple[str, NDArray[Any] | None]]:
    """Names with their arrays, or None where a variable is not an array of real numbers."""
    body = memoryview(path.read_bytes())
    order = ORDERS.get(bytes(body[126:128]))
    if order is None or int.from_bytes(body[124:126], "little" if order == "<" else "big") != 0x100:
        raise ValueError("its header is another")
    body = body[128:]
    while body:
        kind, part, body = _element(body, order, padded=False)
        if kind == COMPRESSED:
            kind, part = _inflated(path, part, order)
        if kind == MATRIX:
            yield _matrix(part, order)


def _inflated(path: Path, packed: memoryview, order: str) -> tuple[int, memoryview]:
    """The element within a compressed one, unpacked no further than it says itself."""
    head = zlib.decompressobj().decompress(packed, 8)
    if len(head) < 8:
        raise ValueError("a compressed variable ends within its header")
    kind, size = (int(number) for number in np.frombuffer(head, f"{order}u4"))
    affordable(path, size, len(packed))
    whole = zlib.decompressobj().decompress(packed, 8 + size)
    return kind, _element(memoryview(whole), order, padded=False)[1]


def _matrix(body: memoryview, order: str) -> tuple[str, NDArray[Any] | None]:
    flags, body = _expected(WORDS, body, order)
    shape, body = _expected(INTS, body, order)
    name, body = _expected(BYTES, body, order)
    if len(flags) != 2:
        raise ValueError("a variable has no flags")
    said, label = int(flags[0]), name.tobytes().decode("latin-1")
    if said & 0xFF not in NUMBERS or said & COMPLEX:
        return label, None
    kind, part, _ = _element(body, order)
    if kind not in STORED:
        raise ValueError(f"{label!r} is stored as an unknown type, {kind}")
    values, size = _numbers(kind, part, order), tuple(int(side) for side in shape)
    if min(size, default=0) < 0 or prod(size) != len(values):
        raise ValueError(f"{label!r} declares the shape {size} and has {len(values)} numbers")
    return label, values.astype(NUMBERS[said & 0xFF], copy=False).reshape(size, order="F")


def _expected(kind: int, body: memoryview, order: str) -> tuple[NDArray[Any], memoryview]:
    found, part, rest = _element(body, order)
    if found != kind:
        raise ValueError(f"an element of type {kind} was expected, and {found} is there")
    return _numbers(kind, part, order), rest


def _numbers(kind: int, part: memoryview, order: str) -> NDArray[Any]:
    return np.frombuffer(part, order + STORED[kind])


def _element(body: memoryview, order: str, *, padded: bool = True) -> tuple[int, memoryview, memoryview]:
    """The type of the first element, its bytes, and what follows; within variables elements end on eighths."""
    if len(body) < 8:
        raise ValueError("it ends within the header of an element")
    kind, size = (int(number) for number in np.frombuffer(body[:8], f"{order}u4"))
    at = 8
    if kind >> 16:  # a small one: size and type share four bytes, and the other four are the content
        kind, size, at = kind & 0xFFFF, kind >> 16, 4
    if size > (len(body) - at if at == 8 else 4):
        raise ValueError(f"an element of {size:,} bytes is declared, and fewer are there")
    end = at + size
    return kind, body[at:end], body[-(-end // 8) * 8 if padded else end :]
