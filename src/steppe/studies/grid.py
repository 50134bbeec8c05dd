"""The cells of a study's file: settings of `steppe train` and `steppe ensemble`, grids of values, and random draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from hashlib import blake2b
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
FRESH = ("seed", "data_seed")  # settings of which a grid takes a number of values: fresh ones at every combination
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
class Law:
    """A setting that is drawn for each run: a key of `RANGES`, and its two ends or all choices."""

    kind: str
    values: Sequence[Any]

    @classmethod
    def of(cls, name: str, value: Any, place: str) -> Law:
        """Parse `{log_uniform: [0.01, 1]}`, whose ends or choices are values of the setting."""
        if not is_law(value):
            hint = f": {{choice: {_yaml(value)}}} draws from a list" if isinstance(value, list) else ""
            if isinstance(value, Mapping) and len(value) == 1 and isinstance(kind := next(iter(value)), str):
                raise ValueError(f"{place}: {unknown('range', kind, RANGES)}")
            kinds = f"{', '.join(RANGES)}, as in {{log_uniform: [0.01, 1]}}"
            raise ValueError(f"{place} takes one of {kinds}, not {value!r}{hint}")
        ((kind, values),) = value.items()
        if not isinstance(values, list) or not values:
            raise ValueError(f"{place}: {kind} takes a list of values, not {values!r}")
        if kind != "choice":
            numbers = int if kind == "integers" else (int, float)
            good = len(values) == 2 and all(isinstance(v, numbers) for v in values) and values[0] <= values[1]
            if not good or (kind == "log_uniform" and values[0] <= 0):
                above = " above 0" if kind == "log_uniform" else ""
                raise ValueError(f"{place}: {kind} takes two numbers{above}, the lower first, not {values!r}")
        for one in values:
            setting(name, one, place)
        return cls(kind, values)

    def draw(self, of: str) -> Any:
        """The value that a text determines."""
        return RANGES[self.kind](Random(of), self.values)


def is_law(value: Any) -> bool:
    """Whether a value in a file is meant as a law."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in RANGES


@dataclass(frozen=True)
class Grid:
    """Lists of values per setting, all combined; a value may be a mapping of several settings.

    `labels` are the names of values in tables, for axes that have any. `fresh` is the number of seeds of their own that
    every combination draws, by setting.
    """

    axes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fresh: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Any, place: str) -> Grid:
        """Parse `{method: [none, {method: sam, rho: [0.1, 0.2]}], lr: [0.1, 0.2], seed: 5}`."""
        lists = mapping(values, place, "settings with lists of values, as in {lr: [0.1, 0.2]}")
        fresh = {}
        for name in FRESH:
            if isinstance(number := lists.get(name), Mapping) and set(number) == {"shared"}:
                count = _count(number["shared"], f"{place}.{name}.shared")
                lists[name] = list(range(count))
            elif number is not None and not isinstance(number, list):
                fresh[name] = _count(lists.pop(name), f"{place}.{name}")
        axes = {name: _axis(name, axis, f"{place}.{name}") for name, axis in lists.items()}
        labels = {name: [label for label, _ in axis] for name, axis in axes.items() if any(label for label, _ in axis)}
        return cls({name: [value for _, value in axis] for name, axis in axes.items()}, labels, fresh)

    @property
    def settings(self) -> list[str]:
        """The settings that it gives values, those of one axis side by side."""
        return list(dict.fromkeys([*(n for axis in self.axes.values() for v in axis for n in v), *self.fresh]))

    @property
    def laws(self) -> list[str]:
        """The settings that some of its entries draw."""
        return [n for axis in self.axes.values() for v in axis for n, one in v.items() if isinstance(one, Law)]

    def labelled(self) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """All combinations without fresh seeds, each with its labels by axis."""
        for choice in product(*(range(len(axis)) for axis in self.axes.values())):
            chosen = dict(zip(self.axes, choice, strict=True))
            point = {name: value for axis, i in chosen.items() for name, value in self.axes[axis][i].items()}
            yield point, {a: self.labels[a][i] for a, i in chosen.items() if a in self.labels and self.labels[a][i]}


def _count(value: Any, place: str) -> int:
    if not fits(value, int) or value < 1:
        raise ValueError(
            f"{place} takes a number of fresh seeds at every combination (5), a number of seeds that all share "
            f"({{shared: 5}}), or a list of seeds, not {value!r}"
        )
    return int(value)


def _axis(name: str, values: Any, place: str) -> list[tuple[str, dict[str, Any]]]:
    """The values of an axis, each with its label or an empty text."""
    own_name = name not in types() and "." not in name
    if own_name and not (isinstance(values, list) and any(isinstance(v, Mapping) for v in values)):
        setting(name, None, place)  # raises: only an axis of mappings has a name of its own
    if not isinstance(values, list) or not values:
        hint = ""
        if isinstance(values, Mapping) and set(values) <= set(RANGES):
            hint = f": a law belongs under `random`, as in {{points: 20, {name}: {_yaml(values)}}}"
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
    """The combinations of an entry whose settings have one value, a law, or a list of values, with its label."""
    values = {str(k): v for k, v in entry.items() if k != LABEL}
    label = str(entry.get(LABEL, ""))
    if not label and name not in types():  # an axis with a name of its own needs names for its values
        label = " ".join(f"{k}={_yaml(v)}" for k, v in values.items())
    laws = {k: Law.of(k, v, f"{place}.{k}") for k, v in values.items() if is_law(v) and not _is_dict(k)}
    values = {k: v for k, v in values.items() if k not in laws}
    lists = {k: isinstance(v, list) and ("." in k or (k in types() and not _takes(k, list))) for k, v in values.items()}
    for choice in product(*(v if lists[k] else [v] for k, v in values.items())):
        yield label, settings(dict(zip(values, choice, strict=True)), place) | laws


def _is_dict(name: str) -> bool:
    return name in types() and _takes(name, dict)


@dataclass(frozen=True)
class Draws:
    """Runs at random settings: `points` of them at every combination of the grid, each with a seed of its own.

    Draws are a function of the study's seed, the combination and their number. With `shared`, the contenders of a
    comparison have the same ones. `earlier` is the seed of the earlier form, in which all combinations share them.
    """

    points: int
    space: Mapping[str, Law] = field(default_factory=dict)
    shared: bool = False
    earlier: int | None = None

    @classmethod
    def of(cls, values: Any, place: str) -> Draws:
        """Parse `{points: 20, lr: {log_uniform: [0.01, 1]}}`, or `{n: 20, seed: 0, space: {...}}`."""
        given = mapping(values, place, "points, and settings with laws, as in {points: 20, lr: {uniform: [0.1, 0.2]}}")
        if earlier := bool({"n", "space"} & set(given)):
            mapping(given, place, "n, seed and space", ("n", "seed", "space"))
        points = given.pop("n" if earlier else "points", None)
        shared, seed = given.pop("shared", earlier), given.pop("seed", 0) if earlier else None
        if not fits(points, int) or points < 1 or not isinstance(shared, bool) or not (seed is None or fits(seed, int)):
            what = "n is a whole number, 1 or more, and seed is one"
            what = what if earlier else "points is a whole number, 1 or more, and shared is true or false"
            raise ValueError(f"{place}: {what}, not {points!r} and {(seed if earlier else shared)!r}")
        space = given.get("space") if earlier else given
        if not isinstance(space, Mapping) or (earlier and not space):
            raise ValueError(f"{place}: space takes settings with ranges, as in {{lr: {{log_uniform: [0.01, 1]}}}}")
        if fits(space.get("seed"), int):
            raise ValueError(f"{place}.seed: every point draws its own seed; `seed` in base is the study's")
        where = f"{place}.space" if earlier else place
        laws = {str(name): Law.of(str(name), law, f"{where}.{name}") for name, law in space.items()}
        return cls(points, laws, shared, seed)

    def text(self, number: int) -> str:
        """What the draws of the earlier form follow from; empty for the present one."""
        return "" if self.earlier is None else f"{self.earlier} {number}"


@dataclass(frozen=True)
class Point:
    """The settings of a run, the labels of its values by axis, and what it has of a contender's settings."""

    settings: Mapping[str, Any]
    labels: Mapping[str, str]
    own: Mapping[str, Any] = field(default_factory=dict)


def points(grid: Grid, draws: Draws | None, base: Mapping[str, Any], contender: Collection[str]) -> Iterator[Point]:
    """All runs of a grid and of draws.

    Seeds and draws follow from the seed in `base` and from the settings that differ from `base`, so that another value
    on an axis, or another axis with the value of `base`, keeps the runs that there are. Settings of the `contender` in
    a comparison do not enter: its contenders have equal seeds.
    """
    usual = {**defaults(ensemble=True), **base}
    independent = draws is not None and not draws.shared  # every contender has draws and seeds of its own
    for number in range(draws.points) if draws is not None else [0]:
        for point, labels in grid.labelled():
            where = {
                name: [value.kind, *value.values] if isinstance(value, Law) else value
                for name, value in point.items()
                if name not in FRESH and value != usual.get(name) and (independent or name not in contender)
            }
            of = f"{usual['seed']} {number} {json.dumps(where, sort_keys=True)}"
            given = {name: value for name, value in point.items() if not isinstance(value, Law)}
            own = {name: value for name, value in given.items() if name in contender}
            fresh = dict(grid.fresh)
            if draws is not None:
                laws = {**draws.space, **{name: law for name, law in point.items() if isinstance(law, Law)}}
                given |= {name: law.draw(f"{draws.text(number) or of} {name}") for name, law in laws.items()}
                if draws.earlier is None and not {"seed", "seeds"} & given.keys():
                    fresh.setdefault("seed", 1)
            for seeds in fresh_seeds(fresh, of):
                yield Point(settings(given | seeds, "grid"), labels, own)


def fresh_seeds(counts: Mapping[str, int], of: str) -> Iterator[dict[str, int]]:
    """So many seeds by setting as a text determines, seeds within data seeds; more of them keep the first ones."""
    for numbers in product(*map(range, counts.values())):
        places = dict(zip(counts, numbers, strict=True))
        texts = {name: f"{of} {name} {i}" for name, i in places.items()}
        if "seed" in places and "data_seed" in places:
            texts["seed"] += f" {places['data_seed']}"
        # below 2^31, so that those of an ensemble's members, 1000 times as large, fit in 64 bits
        yield {
            name: int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
            for name, text in texts.items()
        }
