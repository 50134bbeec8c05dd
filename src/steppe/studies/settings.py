"""Settings of training runs as they stand in a study's file: known by name, and of the type that they have to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..names import unknown
from ..training.config import Config

OURS = {  # settings of a run that a study sees to
    "out": "runs lie in the study's own folder",
    "measures": "say `measures` of the study itself",
    "measure_every": "a study measures the trained model",
    "loggers": "a study has a store of its own",
}
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}


@cache
def types() -> dict[str, Any]:
    """The type of every setting of a run."""
    return get_type_hints(Config)


def setting(name: str, value: Any, place: str) -> Any:
    """A value for a setting, or an error that says what is wrong with the one or the other."""
    if name in OURS:
        raise ValueError(f"{place}: {name} cannot be given here: {OURS[name]}")
    if name not in types():
        raise ValueError(f"{place}: {unknown('setting', str(name), (n for n in types() if n not in OURS))}")
    found, fits = _fitting(value, types()[name])
    if not fits:
        choices = _choices(types()[name])
        if choices:
            raise ValueError(f"{place}: {unknown(f'value of {name}', str(value), choices)}")
        raise ValueError(f"{place}: {name} takes {_words(types()[name])}, not {value!r}")
    return found


def settings(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Several of them."""
    return {str(name): setting(str(name), value, f"{place}.{name}") for name, value in given.items()}


def config_of(given: Mapping[str, Any], place: str) -> Config:
    """The configuration with these settings; what is wrong with it is told with its place."""
    try:
        return Config(**given)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def plain(config: Config) -> dict[str, Any]:
    """A configuration in JSON's own types."""
    found: dict[str, Any] = json.loads(json.dumps({f.name: getattr(config, f.name) for f in fields(config)}))
    return found


def is_mapping(name: str) -> bool:
    """Whether values of a setting are mappings themselves."""
    return dict in [get_origin(t) or t for t in _alternatives(types()[name])]


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _choices(kind: Any) -> tuple[str, ...]:
    return next((get_args(t) for t in _alternatives(kind) if get_origin(t) is Literal), ())


def _words(kind: Any) -> str:
    return " or ".join("null" if t is NoneType else WORDS[get_origin(t) or t] for t in _alternatives(kind))


def _fitting(value: Any, kind: Any) -> tuple[Any, bool]:
    """The value as that type has it, and whether it is one."""
    for one in _alternatives(kind):
        shape = get_origin(one) or one
        if shape is Literal:
            if value in get_args(one):
                return value, True
        elif shape is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value), True
        elif shape is list and isinstance(value, list):
            parts = [_fitting(v, get_args(one)[0]) for v in value]
            if all(fits for _, fits in parts):
                return [v for v, _ in parts], True
        elif isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
            return value, True
    return value, False
