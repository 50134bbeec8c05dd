"""The runs of a study's file: settings of `steppe train` with their types, grids of values, and random draws."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from math import exp, log
from random import Random
from typing import Any, get_args, get_origin, get_type_hints

from .._util.names import unknown
from .._util.types import alternatives, choices, fits, words
from ..training.config import Config

RESERVED = {  # settings of a run that a study sets itself
    "out": "runs lie in the study's own folder",
    "measures": "say `measures` of the study itself",
    "measure_every": "say `measure_every` of the study itself",
    "loggers": "a study has its own store",
}
RANGES = ("uniform", "log_uniform", "integers", "choice")


@cache
def types() -> dict[str, Any]:
    """The type of every setting of a run."""
    return get_type_hints(Config)


def setting(name: str, value: Any, place: str) -> Any:
    """A checked value of a setting; whole numbers become floats where the setting is one, so that both have one key."""
    if name in RESERVED:
        raise ValueError(f"{place}: {name} cannot be given here: {RESERVED[name]}")
    if name not in types():
        raise ValueError(f"{place}: {unknown('setting', str(name), (n for n in types() if n not in RESERVED))}")
    kind = types()[name]
    if not fits(value, kind):
        if choices(kind) and isinstance(value, str):
            raise ValueError(f"{place}: {unknown(f'value of {name}', value, choices(kind))}")
        raise ValueError(f"{place}: {name} takes {words(kind)}, not {value!r}{_list_hint(name, value, place)}")
    return _as_float(value, kind)


def _takes(name: str, kind: type) -> bool:
    return kind in [get_origin(t) or t for t in alternatives(types()[name])]


def _list_hint(name: str, value: Any, place: str) -> str:
    """How to write a list in the place of a value, or a value in the place of a list."""
    in_base, text = place.startswith("base"), _yaml(value)
    if _takes(name, list) and not isinstance(value, list | Mapping):
        return (
            f": write `{name}: [{text}]`" if in_base else f": each value is a list itself, as in `{name}: [[{text}]]`"
        )
    if not isinstance(value, list) or _takes(name, list):
        return ""
    if in_base:
        return f": to vary it over runs, write `{name}: {text}` under `grid`"
    if place.count(".") > 1:  # in an entry such as {method: sam, rho: [0.1, 0.2]}
        return f": write one entry per value, {', '.join(f'{{..., {name}: {_yaml(v)}}}' for v in value)}"
    return f": list the values without inner brackets, `{name}: {text}`"


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str).replace('"', "")


def settings(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Checked values of several settings."""
    return {str(name): setting(str(name), value, f"{place}.{name}") for name, value in values.items()}


def config_of(values: Mapping[str, Any], place: str) -> Config:
    """The configuration with these settings; errors name the place."""
    try:
        return Config(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def plain(config: Config) -> dict[str, Any]:
    """A configuration in JSON types."""
    values: dict[str, Any] = json.loads(json.dumps({f.name: getattr(config, f.name) for f in fields(config)}))
    return values


def _as_float(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return [_as_float(v, next(get_args(t)[0] for t in alternatives(kind) if get_origin(t) is list)) for v in value]
    return float(value) if type(value) is int and float in alternatives(kind) else value


@dataclass(frozen=True)
class Grid:
    """Lists of values per setting, all combined; a value may be a mapping of several settings."""

    axes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any, place: str) -> Grid:
        """Parse `{method: [none, {method: sam, rho: 0.1}], lr: [0.1, 0.2]}`."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{place} takes settings with lists of values, as in {{lr: [0.1, 0.2]}}, not {values!r}")
        return cls({str(name): _axis(str(name), axis, f"{place}.{name}") for name, axis in values.items()})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for parts in product(*self.axes.values()):
            yield {name: value for part in parts for name, value in part.items()}


def _axis(name: str, values: Any, place: str) -> list[dict[str, Any]]:
    if name not in types() and not (isinstance(values, list) and any(isinstance(v, Mapping) for v in values)):
        setting(name, None, place)  # raises: only an axis of mappings has a name of its own
    if not isinstance(values, list) or not values:
        hint = ""
        if isinstance(values, Mapping) and set(values) <= set(RANGES):
            hint = f": ranges belong under `random`, as in {{n: 20, space: {{{name}: {_yaml(values)}}}}}"
        elif values is not None and not isinstance(values, Mapping | list):
            hint = f": write `{name}: [{_yaml(values)}]`, or move it to `base` if all runs share it"
        raise ValueError(f"{place} takes a list of values, not {values!r}{hint}")
    # a mapping is several settings, unless the values of this setting are mappings themselves
    several = name not in types() or not _takes(name, dict)
    return [
        settings(value, place) if several and isinstance(value, Mapping) else {name: setting(name, value, place)}
        for value in values
    ]


@dataclass(frozen=True)
class Range:
    """Values of one setting that are drawn at random: both ends, or all choices."""

    kind: str
    values: Sequence[Any]

    @classmethod
    def of(cls, given: Any, place: str) -> Range:
        """Parse `{log_uniform: [0.01, 1]}`."""
        if not isinstance(given, Mapping) or len(given) != 1:
            hint = f": {{choice: {_yaml(given)}}} draws from a list" if isinstance(given, list) else ""
            raise ValueError(
                f"{place} takes one of {', '.join(RANGES)}, as in {{log_uniform: [0.01, 1]}}, not {given!r}{hint}"
            )
        (kind, values), *_ = given.items()
        if kind not in RANGES:
            raise ValueError(f"{place}: {unknown('range', str(kind), RANGES)}")
        if kind == "choice":
            if not isinstance(values, list) or not values:
                raise ValueError(f"{place}: choice takes a list of values, not {values!r}")
            return cls(kind, values)
        wanted = int if kind == "integers" else (int, float)
        good = isinstance(values, list) and len(values) == 2 and all(isinstance(v, wanted) for v in values)
        if not good or values[0] > values[1] or (kind == "log_uniform" and values[0] <= 0):
            above = " above 0" if kind == "log_uniform" else ""
            raise ValueError(f"{place}: {kind} takes two numbers{above}, the lower first, not {values!r}")
        return cls(kind, values)

    def draw(self, random: Random) -> Any:
        match self.kind:
            case "uniform":
                return random.uniform(*self.values)
            case "log_uniform":
                return exp(random.uniform(log(self.values[0]), log(self.values[1])))
            case "integers":
                return random.randint(*self.values)
            case _:
                return random.choice(self.values)


@dataclass(frozen=True)
class Draws:
    """n random cells. Each is a function of the seed and its number, so a larger n keeps the others."""

    n: int
    space: Mapping[str, Range]
    seed: int = 0

    @classmethod
    def of(cls, values: Any, place: str) -> Draws:
        """Parse `{n: 50, seed: 0, space: {lr: {log_uniform: [0.01, 1]}}}`."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{place} takes a mapping with n, seed and space, not {values!r}")
        for key in values:
            if key not in ("n", "seed", "space"):
                raise ValueError(f"{place}: {unknown('key', str(key), ('n', 'seed', 'space'))}")
        n, seed, space = values.get("n"), values.get("seed", 0), values.get("space")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1 or not isinstance(seed, int):
            raise ValueError(f"{place}: n is a whole number, 1 or more, and seed is one, not {n!r} and {seed!r}")
        if not isinstance(space, Mapping) or not space:
            raise ValueError(f"{place}: space takes settings with ranges, as in {{lr: {{log_uniform: [0.01, 1]}}}}")
        ranges = {str(name): Range.of(one, f"{place}.space.{name}") for name, one in space.items()}
        for name, one in ranges.items():  # all ends and choices have the setting's type
            for value in one.values:
                setting(name, value, f"{place}.space.{name}")
        return cls(n, ranges, seed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.n):
            yield {name: one.draw(Random(f"{self.seed} {number} {name}")) for name, one in self.space.items()}
