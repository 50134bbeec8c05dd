"""The runs of a study: every combination of a grid, settings drawn at random, and fresh seeds; and parts of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from .._util.names import unknown
from ..core.fields import fits
from ..core.laws import KINDS, Law, law_of, parts_of
from .grid import defaults, in_yaml, mapping, setting, settings, takes, types

LABEL = "label"  # in an entry of an axis: its name in tables, not a setting
PARTS = "parts"  # the folder with those of the parts of a study
FRESH = ("seed", "data_seed")  # settings of which a grid takes a number of values: fresh ones at every combination


def _law(name: str, value: Any, place: str) -> Law:
    """Parse `{log_uniform: [0.01, 1]}`, whose ends or choices are values of the setting."""
    if not is_law(value):
        hint = f": {{choice: {in_yaml(value)}}} draws from a list" if isinstance(value, list) else ""
        if isinstance(value, Mapping) and len(value) == 1 and isinstance(kind := next(iter(value)), str):
            raise ValueError(f"{place}: {unknown('law', kind, KINDS)}")
        raise ValueError(
            f"{place} takes one of {', '.join(KINDS)}, as in {{log_uniform: [0.01, 1]}}, not {value!r}{hint}"
        )
    try:
        law = law_of(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    for one in parts_of(law):
        setting(name, one, place)
    return law


def is_law(value: Any) -> bool:
    """Whether a value in a file is meant as a law."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in KINDS


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
        if isinstance(values, Mapping) and set(values) <= set(KINDS):
            hint = f": a law belongs under `random`, as in {{points: 20, {name}: {in_yaml(values)}}}"
        elif values is not None and not isinstance(values, Mapping | list):
            hint = f": write `{name}: [{in_yaml(values)}]`, or move it to `base` if all runs share it"
        raise ValueError(f"{place} takes a list of values, not {values!r}{hint}")
    # a mapping is several settings, unless the values of this setting are mappings themselves
    several = name not in types() or not takes(name, dict)
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
        label = " ".join(f"{k}={in_yaml(v)}" for k, v in values.items())
    laws = {k: _law(k, v, f"{place}.{k}") for k, v in values.items() if is_law(v) and not _is_dict(k)}
    values = {k: v for k, v in values.items() if k not in laws}
    lists = {k: isinstance(v, list) and ("." in k or (k in types() and not takes(k, list))) for k, v in values.items()}
    for choice in product(*(v if lists[k] else [v] for k, v in values.items())):
        yield label, settings(dict(zip(values, choice, strict=True)), place) | laws


def _is_dict(name: str) -> bool:
    return name in types() and takes(name, dict)


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
        laws = {str(name): _law(str(name), law, f"{where}.{name}") for name, law in space.items()}
        return cls(points, laws, shared, seed)

    def text(self, number: int) -> str:
        """What the draws of the earlier form follow from; empty for the present one."""
        return "" if self.earlier is None else f"{self.earlier} {number}"


@dataclass(frozen=True)
class Point:
    """The settings of a run, the labels of its values by axis, and those that the grid gives it, without draws."""

    settings: Mapping[str, Any]
    labels: Mapping[str, str]
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One of several parts of a study, each for a process of its own, such as a task of a Slurm array.

    Parts share the folders of runs, whose locks keep two processes from one run, and each is the one writer of a store.
    `parts` makes them, and takes their records in.
    """

    number: int
    count: int
    keys: frozenset[str] = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where its records are, in the study's folder."""
        return Path(PARTS, f"{self.number}-of-{self.count}")


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
                name: [value.kind, *parts_of(value)] if isinstance(value, Law) else value
                for name, value in point.items()
                if name not in FRESH and value != usual.get(name) and (independent or name not in contender)
            }
            of = f"{usual['seed']} {number} {json.dumps(where, sort_keys=True)}"
            given = {name: value for name, value in point.items() if not isinstance(value, Law)}
            fresh, drawn = dict(grid.fresh), {}
            if draws is not None:
                laws = {**draws.space, **{name: law for name, law in point.items() if isinstance(law, Law)}}
                drawn = {name: law.draw(Random(f"{draws.text(number) or of} {name}")) for name, law in laws.items()}
                if draws.earlier is None and not {"seed", "seeds"} & {**given, **drawn}.keys():
                    fresh.setdefault("seed", 1)
            for seeds in fresh_seeds(fresh, of):
                yield Point(settings(given | drawn | seeds, "grid"), labels, given)


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
