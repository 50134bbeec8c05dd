"""Options of methods, checked by type and range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from inspect import isroutine
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor

from .._util.types import WORDS, alternatives
from ..core.arguments import check_instance, described
from ..core.ball import Ascent
from ..core.probe import Method
from ..core.triple import TRIPLES, Triple, triple_of

Range = tuple[str, Callable[[Any], bool]]  # in words, and as a test

FINITE: Range = ("finite", isfinite)
NOT_NEGATIVE: Range = ("0 or more, and finite", lambda v: 0 <= v < inf)
POSITIVE: Range = ("more than 0, and finite", lambda v: 0 < v < inf)
COUNT: Range = ("1 or more", lambda v: v >= 1)
NORM: Range = ("1 or more, inf included", lambda v: v >= 1)
SHARE: Range = ("from 0 to 1", lambda v: 0 <= v <= 1)
SOME: Range = ("more than 0 and at most 1", lambda v: 0 < v <= 1)
PART: Range = ("more than 0 and less than 1", lambda v: 0 < v < 1)

RANGES: Mapping[str, Range] = {  # by the name of the option, for all methods
    "rho": NOT_NEGATIVE,
    "held_out_rho": NOT_NEGATIVE,
    "p": NORM,
    "steps": COUNT,
    "eta": NOT_NEGATIVE,
    "n": COUNT,
    "strength": FINITE,
    "side": POSITIVE,
    "delta": NOT_NEGATIVE,
    "damping": POSITIVE,
    "epsilon": NOT_NEGATIVE,
    "share": PART,
    "sparsity": SHARE,
    "drop": SHARE,
    "samples": COUNT,
    "every": COUNT,
    "k": COUNT,
    "alpha": NOT_NEGATIVE,
    "sigma": NOT_NEGATIVE,
    "smoothing": NOT_NEGATIVE,
    "beta": SOME,
    "gamma": SOME,
    "parts": COUNT,
}


def checked(factory: Callable[..., Any], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `factory`, checked; converts parts of triples by name, and the string "inf", which JSON needs."""
    hints = _hints(factory)
    return {option: _checked(option, name, value, hints.get(option, Any)) for option, value in options.items()}


def check_fields(method: Any) -> None:
    """The `__post_init__` of methods: checks every field as `checked` does."""
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    for name, value in checked(type(method), type(method).__name__, values).items():
        if value is not values[name]:  # converted
            object.__setattr__(method, name, value)


def check_method(method: Any, what: str = "the method") -> None:
    """Raise for what is no method, and say how to make one of it."""
    check_instance(what, method)
    if isroutine(method):
        raise TypeError(f"{what} is {described(method)}: call it, {method.__name__}(), to make one")
    if isinstance(method, str):
        raise TypeError(f"{what} is the string {method!r}: write steppe.method({method!r}, ...) for a name")
    if hasattr(method, "steepest_"):
        raise TypeError(f"{what} is a neighbourhood, {method!r}: write SAM({method!r})")
    missing = [name for name in ("plan", "options", "cost") if not callable(getattr(method, name, None))]
    if missing or not hasattr(method, "slots"):
        lacking = ", ".join(missing or ["slots"])
        raise TypeError(
            f"{what} is a steppe.Method such as steppe.SAM(rho=0.05), not {described(method)}: it has no {lacking}"
        )


@cache
def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(factory)


def _checked(option: str, name: str, value: Any, hint: Any) -> Any:
    kinds, within = alternatives(hint), RANGES.get(option, ("", lambda v: True))
    if Method in kinds:
        check_method(value, f"{option} of {name}")
        return value
    if Triple in kinds and isinstance(value, str | Mapping):
        try:
            return triple_of(value)
        except ValueError as error:
            raise ValueError(f"{option} of {name}: {error}") from error
    if float in kinds and value == "inf" and within[1](inf):
        return inf
    if not any(_fits(value, kind, within[1]) for kind in kinds):
        raise ValueError(f"{option} of {name} takes {_words(kinds, within[0])}, not {value!r}")
    return value


def _fits(value: Any, kind: Any, within: Callable[[Any], bool]) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float):
        if kind is float and isinstance(value, Tensor):  # reading it would synchronize
            return value.ndim == 0
        number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
        return number and within(value)
    if kind is Ascent:
        return hasattr(value, "steepest_") and not isinstance(value, type)
    return isinstance(value, kind)


def _words(kinds: tuple[Any, ...], within: str) -> str:
    parts = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            parts.append(" or ".join(map(repr, get_args(kind))))
        elif kind in (int, float):
            parts.append(f"{WORDS[kind]}{', ' if within else ''}{within}")
        elif kind is Triple:
            parts.append(f"a triple ({', '.join(TRIPLES)}, a mapping of parts, or a Triple)")
        elif kind is Ascent:
            parts.append("a neighbourhood such as Ball(0.1)")
        else:
            parts.append(WORDS.get(kind) or f"a {kind.__name__}")
    return ", or ".join(parts)
