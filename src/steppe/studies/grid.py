"""The cells of a study's file: settings of `steppe train` and `steppe ensemble`, grids of values, and random draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import product
from math import exp, log, sqrt
from random import Random
from typing import Any, get_args, get_origin, get_type_hints

from .._util.names import unknown
from ..core.fields import alternatives, choices, fits, words
from ..ensembles.strategies import STRATEGIES, Ensemble, unread
from ..training.config import Config

RESERVED = {  # settings of a run or an ensemble that a study sets itself
    "out": "runs lie in the study's own folder",
    "measures": "say `measures` of the study itself",
    "measure_every": "say `measure_every` of the study itself",
    "loggers": "a study has its own store",
    "how": "a cell trains its members one after the other; `engine` computes several cells at once",
    "processes": "write `engine: {workers: 4}` beside `base`",
}
SQRT_LR = "sqrt(lr)"  # a value of rho: the radius of SA-SAM's section 4, from the learning rate of each run
LABEL = "label"  # in an entry of an axis: its name in tables, not a setting
STRATEGY = "strategy"  # the setting that makes a cell an ensemble
RANGES: Mapping[str, Callable[[Random, Sequence[Any]], Any]] = {
    "uniform": lambda random, ends: random.uniform(*ends),
    "log_uniform": lambda random, ends: exp(random.uniform(log(ends[0]), log(ends[1]))),
    "integers": lambda random, ends: random.randint(*ends),
    "choice": lambda random, values: random.choice(values),
}
"""How values of a setting are drawn, by the name of a range."""


def mapping(value: Any, place: str, what: str, keys: Collection[str] | None = None) -> dict[str, Any]:
    """A mapping in a study's file; raises with what the place takes, or for a key that is not among these."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} takes {what}, not {value!r}")
    for key in value:
        if keys is not None and key not in keys:
            raise ValueError(unknown(f"key of {place}", str(key), keys))
    return {str(key): one for key, one in value.items()}


@cache
def types() -> dict[str, Any]:
    """The type of every setting of a run or an ensemble."""
    return get_type_hints(Config) | get_type_hints(Ensemble)


OF_ENSEMBLES = frozenset(f.name for f in fields(Ensemble))  # settings that runs do not have


def setting(name: str, value: Any, place: str) -> Any:
    """A checked value of a setting; whole numbers become floats where the setting is one, so that both have one key."""
    owner, _, option = name.partition(".")
    if option and owner in types() and _takes(owner, dict):
        return value  # one option of a method or a model, which checks it
    if name == "rho" and value == SQRT_LR:
        return value
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
    return f": list the values without inner brackets, `{name}: {text}`"


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str).replace('"', "")


def settings(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Checked values of several settings."""
    return {str(name): setting(str(name), value, f"{place}.{name}") for name, value in values.items()}


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run from those of a file: `method_options.n` enters its mapping, and sqrt(lr) is a number."""
    whole = {name: value for name, value in values.items() if "." not in name}
    for name, value in values.items():
        owner, _, option = name.partition(".")
        if option:
            whole[owner] = {**whole.get(owner, {}), option: value}
    if whole.get("rho") == SQRT_LR:
        whole["rho"] = sqrt(Config(**{name: whole[name] for name in ("method", "lr") if name in whole}).lr)
    return whole


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """A value of a configuration, nested ones as `method_options.n`; None if there is none."""
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def differing(paths: Iterable[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings among these that have several values in the configurations."""
    return [p for p in paths if len({json.dumps(value_at(c, p), sort_keys=True) for c in configs}) > 1]


def shown(value: Any) -> str:
    """A value of a setting in names and tables; nothing for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def config_of(values: Mapping[str, Any], place: str) -> Config:
    """The configuration of a run with these settings; errors name the place."""
    for name in values:
        if name in OF_ENSEMBLES:
            raise ValueError(
                f"{place}: {name} is a setting of an ensemble, and this is none: give its {STRATEGY} too, one of "
                f"{', '.join(STRATEGIES)}"
            )
    try:
        return Config(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def plain(config: Config) -> dict[str, Any]:
    """A configuration in JSON types."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return values


def complete(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """All settings of a run, or of an ensemble if a strategy is among them; errors name the place.

    Settings that the strategy does not read are left out: ensembles of `deep` with two radii are one cell.
    """
    if STRATEGY not in values:
        return plain(config_of(values, place))
    own = {name: value for name, value in values.items() if name in OF_ENSEMBLES}
    try:
        ensemble = Ensemble(**own)
        without = unread(ensemble.strategy)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    shared = {k: v for k, v in values.items() if k not in own and k.partition(".")[0] not in without}
    config = config_of(shared | ({"method": "none"} if "method" in without else {}), place)
    return plain(config) | {k: v for k, v in asdict(ensemble).items() if k not in without and k not in RESERVED}


def split(values: Mapping[str, Any]) -> tuple[Config, Ensemble | None]:
    """The configuration of the run or of the members, and the settings of the ensemble if it is one."""
    own = {name: value for name, value in values.items() if name in OF_ENSEMBLES}
    config = Config(**{name: value for name, value in values.items() if name not in own})
    return config, Ensemble(**own) if own else None


@cache
def defaults(*, ensemble: bool) -> Mapping[str, Any]:
    """The defaults of all settings of a run or an ensemble; a strategy has none, because it decides on the kind."""
    return asdict(Config()) | ({k: v for k, v in asdict(Ensemble()).items() if k != STRATEGY} if ensemble else {})


def _as_float(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return [_as_float(v, next(get_args(t)[0] for t in alternatives(kind) if get_origin(t) is list)) for v in value]
    return float(value) if type(value) is int and float in alternatives(kind) else value


@dataclass(frozen=True)
class Grid:
    """Lists of values per setting, all combined; a value may be a mapping of several settings.

    `labels` are the names of values in tables, for axes that have any.
    """

    axes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any, place: str) -> Grid:
        """Parse `{method: [none, {method: sam, rho: [0.1, 0.2]}], lr: [0.1, 0.2]}`."""
        lists = mapping(values, place, "settings with lists of values, as in {lr: [0.1, 0.2]}")
        axes = {name: _axis(name, axis, f"{place}.{name}") for name, axis in lists.items()}
        labels = {name: [label for label, _ in axis] for name, axis in axes.items() if any(label for label, _ in axis)}
        return cls({name: [value for _, value in axis] for name, axis in axes.items()}, labels)

    def labelled(self) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """All points, each with its labels by axis."""
        for choice in product(*(range(len(axis)) for axis in self.axes.values())):
            chosen = dict(zip(self.axes, choice, strict=True))
            point = {name: value for axis, i in chosen.items() for name, value in self.axes[axis][i].items()}
            yield point, {a: self.labels[a][i] for a, i in chosen.items() if a in self.labels and self.labels[a][i]}


def _axis(name: str, values: Any, place: str) -> list[tuple[str, dict[str, Any]]]:
    """The values of an axis, each with its label or an empty text."""
    own_name = name not in types() and "." not in name
    if own_name and not (isinstance(values, list) and any(isinstance(v, Mapping) for v in values)):
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
    axis: list[tuple[str, dict[str, Any]]] = []
    for value in values:
        if several and isinstance(value, Mapping):
            axis += _entry(name, value, place)
        else:
            axis.append(("", {name: setting(name, value, place)}))
    return axis


def _entry(name: str, entry: Mapping[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The combinations of an entry whose settings have one value or a list of them, with the entry's label."""
    values = {str(k): v for k, v in entry.items() if k != LABEL}
    label = str(entry.get(LABEL, ""))
    if not label and name not in types():  # an axis with a name of its own needs names for its values
        label = " ".join(f"{k}={_yaml(v)}" for k, v in values.items())
    lists = {k: isinstance(v, list) and ("." in k or (k in types() and not _takes(k, list))) for k, v in values.items()}
    for choice in product(*(v if lists[k] else [v] for k, v in values.items())):
        yield label, settings(dict(zip(values, choice, strict=True)), place)


def _range(value: Any, place: str) -> tuple[str, Sequence[Any]]:
    """The kind of `{log_uniform: [0.01, 1]}`, and its two ends or all choices."""
    if not isinstance(value, Mapping) or len(value) != 1:
        hint = f": {{choice: {_yaml(value)}}} draws from a list" if isinstance(value, list) else ""
        kinds = f"{', '.join(RANGES)}, as in {{log_uniform: [0.01, 1]}}"
        raise ValueError(f"{place} takes one of {kinds}, not {value!r}{hint}")
    ((kind, values),) = value.items()
    if kind not in RANGES:
        raise ValueError(f"{place}: {unknown('range', str(kind), RANGES)}")
    if not isinstance(values, list) or not values:
        raise ValueError(f"{place}: {kind} takes a list of values, not {values!r}")
    if kind != "choice":
        numbers = int if kind == "integers" else (int, float)
        good = len(values) == 2 and all(isinstance(v, numbers) for v in values) and values[0] <= values[1]
        if not good or (kind == "log_uniform" and values[0] <= 0):
            above = " above 0" if kind == "log_uniform" else ""
            raise ValueError(f"{place}: {kind} takes two numbers{above}, the lower first, not {values!r}")
    return kind, values


@dataclass(frozen=True)
class Draws:
    """n random cells, from the ranges of settings. Each is a function of the seed and its number."""

    n: int
    space: Mapping[str, tuple[str, Sequence[Any]]]
    seed: int = 0

    @classmethod
    def of(cls, values: Any, place: str) -> Draws:
        """Parse `{n: 50, seed: 0, space: {lr: {log_uniform: [0.01, 1]}}}`."""
        values = mapping(values, place, "a mapping with n, seed and space", [f.name for f in fields(cls)])
        n, seed, space = values.get("n"), values.get("seed", 0), values.get("space")
        if not fits(n, int) or n < 1 or not isinstance(seed, int):
            raise ValueError(f"{place}: n is a whole number, 1 or more, and seed is one, not {n!r} and {seed!r}")
        if not isinstance(space, Mapping) or not space:
            raise ValueError(f"{place}: space takes settings with ranges, as in {{lr: {{log_uniform: [0.01, 1]}}}}")
        ranges = {str(name): _range(one, f"{place}.space.{name}") for name, one in space.items()}
        for name, (_, ends) in ranges.items():  # all ends and choices have the setting's type
            for value in ends:
                setting(name, value, f"{place}.space.{name}")
        return cls(n, ranges, seed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.n):
            yield {
                name: RANGES[kind](Random(f"{self.seed} {number} {name}"), values)
                for name, (kind, values) in self.space.items()
            }
