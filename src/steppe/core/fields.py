"""Checks of frozen values against their annotations, such as `alpha: Annotated[float, Ge(0)]`; without torch.

A number is finite unless its annotation says `Inf`. A function among the annotations checks a value of its own kind: it
gets the value and what it is called, such as "triple of UniversalSAM", and returns the value to keep.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from math import inf, isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    NoneType: "null (None)",
}
"""Types in words; modules add those of their own."""


@dataclass(frozen=True)
class Bound:
    """A side of a range of numbers."""

    words: str
    holds: Callable[[Any], bool]


def Ge(least: float) -> Bound:  # noqa: N802
    """At least this number."""
    return Bound(f"{least} or more", lambda v: v >= least)


def Gt(least: float) -> Bound:  # noqa: N802
    """More than this number."""
    return Bound(f"more than {least}", lambda v: v > least)


def Le(most: float) -> Bound:  # noqa: N802
    """At most this number."""
    return Bound(f"at most {most}", lambda v: v <= most)


def Lt(most: float) -> Bound:  # noqa: N802
    """Less than this number."""
    return Bound(f"less than {most}", lambda v: v < most)


Inf = Bound("inf included", lambda v: True)


@dataclass(frozen=True)
class Kind:
    """One alternative of an annotation: a type, the bounds of its numbers, and checks of its own."""

    type: Any
    bounds: tuple[Bound, ...] = ()
    checks: tuple[Callable[[Any, str], Any], ...] = ()

    @cached_property
    def shape(self) -> tuple[Any, tuple[Any, ...]]:
        """The type without its parameters, and these."""
        return get_origin(self.type) or self.type, get_args(self.type)

    @cached_property
    def parts(self) -> tuple[Kind, ...]:
        """The alternatives of the items of a list, or of the values of a mapping."""
        return kinds_of(self.shape[1][-1])

    @property
    def words(self) -> str:
        if get_origin(self.type) is Literal:
            return f"one of {', '.join(map(str, get_args(self.type)))}"
        shape = get_origin(self.type) or self.type
        text = WORDS.get(self.type) or WORDS.get(shape) or f"a {getattr(shape, '__name__', shape)}"
        inside = [kind for part in get_args(self.type)[-1:] for kind in kinds_of(part)]
        if shape in (list, dict) and inside and inside[0].bounds:
            of = inside[0].words.removeprefix("a ").replace("number", "numbers", 1)
            return f"{text} of {'names to ' if shape is dict else ''}{of}"
        if shape not in (int, float):
            return text
        bounds = [b.words for b in self.bounds if b is not Inf]
        numbers = re.sub(r"^(\S+) or more and at most ", r"from \1 to ", " and ".join(bounds))
        open_ended = shape is float and bounds and not any(b.startswith(("at most", "less")) for b in bounds)
        ends = "" if not open_ended else "inf included" if Inf in self.bounds else "and finite"
        return ", ".join(part for part in (text, numbers, ends) if part)

    def fits(self, value: Any, tensors: bool = False) -> bool:
        """Whether a value has the type and is within the bounds; `tensors` may be numbers too, and are not read."""
        shape, inside = self.shape
        if shape is Literal:
            return value in inside
        if isinstance(value, bool):
            return shape in (bool, Any, object)
        if shape in (int, float):
            scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "requires_grad")
            return tensors and shape is float if scalar else self._is_number(value)
        if shape in (list, dict):
            items = value.values() if isinstance(value, Mapping) else value
            return isinstance(value, Mapping if shape is dict else list | tuple) and (
                not inside or all(any(kind.fits(one) for kind in self.parts) for one in items)
            )
        try:
            accepted = str | os.PathLike if shape is str else shape
            return isinstance(value, accepted) and (shape is Callable or not isinstance(value, type))
        except TypeError:  # Any, a protocol or a form of typing, which have no instances
            return True

    def _is_number(self, value: Any) -> bool:
        # the test of an abstract class takes long
        if type(value) is not self.type and not isinstance(value, Integral if self.type is int else Real):
            return False
        finite = self.type is int or Inf in self.bounds or isfinite(value)
        return finite and all(bound.holds(value) for bound in self.bounds)


@cache
def kinds_of(annotation: Any) -> tuple[Kind, ...]:
    """The alternatives of an annotation."""
    if get_origin(annotation) is Annotated:
        inner, *extra = get_args(annotation)
        bounds = tuple(x for x in extra if isinstance(x, Bound))
        checks = tuple(x for x in extra if callable(x))
        return tuple(Kind(k.type, (*k.bounds, *bounds), (*k.checks, *checks)) for k in kinds_of(inner))
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for one in get_args(annotation) for kind in kinds_of(one))
    return (Kind(NoneType if annotation is None else annotation),)


def words(annotation: Any) -> str:
    """The values of an annotation in words, such as `a number or null (None)`."""
    parts = [kind.words for kind in kinds_of(annotation)]
    return (", or " if any("," in part for part in parts) else " or ").join(parts)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value has a type: a bool is no number, an int is also a float, a path also a string."""
    return any(kind.fits(value) for kind in kinds_of(annotation))


@cache
def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type that it is, without ranges."""
    return tuple(kind.type for kind in kinds_of(annotation))


def choices(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal, alone or among alternatives."""
    return next((get_args(k.type) for k in kinds_of(annotation) if get_origin(k.type) is Literal), ())


@cache
def hints_of(source: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a class or a function, with ranges; empty if they name what only a type checker imports."""
    try:
        return get_type_hints(source, include_extras=True)
    except NameError:
        return {}


def checked(source: Callable[..., Any], owner: str, values: Mapping[str, Any], tensors: bool = False) -> dict[str, Any]:
    """The values for the fields or parameters of `source`, checked; some are converted, such as "inf" of a JSON file.

    Parameters
    ----------
    source
        A class or a function with annotations.
    owner
        What has these values in errors; empty for settings, whose name is enough.
    values
        By the name of the field.
    tensors
        Whether tensors of one number are numbers.

    """
    hints, kinds = hints_of(source), _kinds_by_name(source)
    return {
        name: _checked(name, owner, value, hints.get(name, Any), kinds.get(name, ANY), tensors)
        for name, value in values.items()
    }


@cache
def _kinds_by_name(source: Callable[..., Any]) -> dict[str, tuple[Kind, ...]]:
    """The alternatives of every annotation: looking one up by the annotation itself takes long."""
    return {name: kinds_of(annotation) for name, annotation in hints_of(source).items()}


def check_fields(value: Any, owner: str | None = None, tensors: bool = False) -> None:
    """The `__post_init__` of a frozen dataclass: every field is as its annotation says, or one error."""
    cls: Any = type(value)
    usual = _defaults_that_fit(cls)  # a study makes thousands of configurations, of which most fields are defaults
    given = {f.name: one for f in fields(cls) if (one := getattr(value, f.name)) is not usual.get(f.name, usual)}
    for name, one in checked(cls, cls.__name__ if owner is None else owner, given, tensors).items():
        if one is not given[name]:  # converted
            object.__setattr__(value, name, one)


@cache
def _defaults_that_fit(cls: Any) -> dict[str, Any]:
    """The defaults of a dataclass that need neither a check of their own nor a conversion, by field."""
    hints = hints_of(cls)
    return {
        f.name: f.default
        for f in fields(cls)
        if any(kind.fits(f.default) for kind in kinds_of(hints.get(f.name, Any)) if not kind.checks)
    }


def _checked(name: str, owner: str, value: Any, annotation: Any, kinds: tuple[Kind, ...], tensors: bool) -> Any:
    if any(kind.fits(value, tensors) for kind in kinds if not kind.checks):
        return value
    what = f"{name} of {owner}" if owner else name
    for kind in kinds:
        for check in kind.checks:
            value = check(value, what)
        if kind.checks:
            return value
    if value == "inf" and any(kind.type is float and kind.fits(inf) for kind in kinds):
        return inf
    if owner:
        given = repr(value) if "\n" not in repr(value) else f"a {type(value).__name__}"  # a model has many lines
        raise ValueError(f"{what} takes {words(annotation)}, not {given}")
    raise ValueError(f"{name} is {value!r}, and has to be {words(annotation)}")


ANY = kinds_of(Any)
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Count = Annotated[int, Ge(1)]
