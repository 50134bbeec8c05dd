"""Checks of values against type hints, and type hints in words, for options of runs and methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    NoneType: "null (None)",
}


@cache
def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type that it is."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def choices(kind: Any) -> tuple[str, ...]:
    """Return the values of a Literal, alone or in a union."""
    return next((get_args(t) for t in alternatives(kind) if get_origin(t) is Literal), ())


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def check_types(settings: DataclassInstance) -> None:
    """Raise ValueError with the first field of a dataclass whose value does not have its type."""
    for name, kind in _hints(type(settings)).items():
        if not fits(value := getattr(settings, name), kind):
            raise ValueError(f"{name} is {value!r}, and has to be {words(kind)}")


def words(kind: Any) -> str:
    """Return the values of a type in words, such as `a number or null (None)`."""
    shapes = [(get_origin(one) or one, one) for one in alternatives(kind)]
    return " or ".join(
        f"one of {', '.join(get_args(one))}" if shape is Literal else WORDS.get(shape) or f"a {shape.__name__}"
        for shape, one in shapes
    )


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type: a bool is no number, an int is also a float, a path also a string."""
    return any(_fits(value, one) for one in alternatives(kind))


def _fits(value: Any, kind: Any) -> bool:
    shape = get_origin(kind) or kind
    if shape is Any:
        return True
    if shape is Literal:
        return value in get_args(kind)
    if isinstance(value, bool):
        return shape is bool
    if shape is list:
        return isinstance(value, list | tuple) and all(fits(v, get_args(kind)[0]) for v in value)
    accepted: Any = {float: (int, float), str: (str, os.PathLike), dict: Mapping}.get(shape, shape)
    return isinstance(value, accepted)
