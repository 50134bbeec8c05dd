"""Settings of training runs as they stand in a study's file: known by name, and of the type that they have to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from .._util.names import unknown
from .._util.types import alternatives, choices, fits, words
from ..training.config import Config

OURS = {  # settings of a run that a study sees to
    "out": "runs lie in the study's own folder",
    "measures": "say `measures` of the study itself",
    "measure_every": "a study measures the trained model",
    "loggers": "a study has a store of its own",
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
    kind = types()[name]
    if not fits(value, kind):
        if choices(kind):
            raise ValueError(f"{place}: {unknown(f'value of {name}', str(value), choices(kind))}")
        raise ValueError(f"{place}: {name} takes {words(kind)}, not {value!r}")
    return _numbers(value, kind)


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
    return dict in [get_origin(t) or t for t in alternatives(types()[name])]


def _numbers(value: Any, kind: Any) -> Any:
    """A value whose whole numbers are written as other numbers, where those are meant: both have one key."""
    if isinstance(value, list):
        return [_numbers(v, next(get_args(t)[0] for t in alternatives(kind) if get_origin(t) is list)) for v in value]
    return float(value) if type(value) is int and float in alternatives(kind) else value
