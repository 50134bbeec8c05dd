"""Where the cells of a study lie: every combination of listed values, random draws from ranges, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import exp, log
from random import Random
from typing import Any

from .._util.names import unknown
from .settings import is_mapping, setting, settings, types

RANGES = ("uniform", "log_uniform", "integers", "choice")


@dataclass(frozen=True)
class Range:
    """Values of one setting that are drawn at random."""

    kind: str
    values: Sequence[Any]  # both ends, or all choices

    @classmethod
    def of(cls, given: Any, place: str) -> Range:
        """What `{log_uniform: [0.01, 1]}` says."""
        if not isinstance(given, Mapping) or len(given) != 1:
            raise ValueError(
                f"{place} takes one of {', '.join(RANGES)}, as in {{log_uniform: [0.01, 1]}}, not {given!r}"
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
    """So many random cells; each is a function of the seed and its number, so that more of them leave these alone."""

    n: int
    space: Mapping[str, Range]
    seed: int = 0

    @classmethod
    def of(cls, given: Any, place: str) -> Draws:
        if not isinstance(given, Mapping):
            raise ValueError(f"{place} takes a mapping with n, seed and space, not {given!r}")
        for key in given:
            if key not in ("n", "seed", "space"):
                raise ValueError(f"{place}: {unknown('key', str(key), ('n', 'seed', 'space'))}")
        n, seed, space = given.get("n"), given.get("seed", 0), given.get("space")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1 or not isinstance(seed, int):
            raise ValueError(f"{place}: n is a whole number, 1 or more, and seed is one, not {n!r} and {seed!r}")
        if not isinstance(space, Mapping) or not space:
            raise ValueError(f"{place}: space takes settings with ranges, as in {{lr: {{log_uniform: [0.01, 1]}}}}")
        ranges = {str(name): Range.of(one, f"{place}.space.{name}") for name, one in space.items()}
        made = cls(n, ranges, seed)
        for name, one in ranges.items():  # all ends and choices are of the setting's type
            for value in one.values:
                setting(name, value, f"{place}.space.{name}")
        return made

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.n):
            yield {name: one.draw(Random(f"{self.seed} {number} {name}")) for name, one in self.space.items()}


@dataclass(frozen=True)
class Grid:
    """Lists of values for settings, all combined; a value may be a mapping of several settings that go together."""

    axes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any, place: str) -> Grid:
        """What `{method: [none, {method: sam, rho: 0.1}], lr: [0.1, 0.2]}` says."""
        if not isinstance(given, Mapping):
            raise ValueError(f"{place} takes settings with lists of values, not {given!r}")
        return cls({str(name): _axis(str(name), values, f"{place}.{name}") for name, values in given.items()})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for parts in product(*self.axes.values()):
            yield {name: value for part in parts for name, value in part.items()}


def _axis(name: str, values: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{place} takes a list of values, not {values!r}")
    together = name in types() and not is_mapping(name)
    found = []
    for value in values:
        if isinstance(value, Mapping) and (together or name not in types()):
            found.append(settings(value, place))
        else:
            found.append({name: setting(name, value, place)})
    return found
