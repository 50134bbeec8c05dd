"""Laws of settings that are drawn at random, and the points of the unit cube that they map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from random import Random
from typing import Any, ClassVar, Protocol

from .._util.numbers import read_plain

BORDER = 0.1  # the outer tenth of a law, at either end


class Interval(Protocol):
    """A law between two ends."""

    low: Any
    high: Any

    def __post_init__(self) -> None:
        numbers = all(
            isinstance(x, int | float) and not isinstance(x, bool) and isfinite(x) for x in (self.low, self.high)
        )
        if not numbers or self.low >= self.high:
            name = type(self).__name__
            raise ValueError(f"a {name} law goes from a number to a larger one, not from {self.low!r} to {self.high!r}")

    def edge(self, u: float) -> str:
        """The end, "low" or "high", of a quantile in the outer tenth of the law, where it has an edge; else ""."""
        return "low" if u < BORDER else "high" if u > 1 - BORDER else ""


@dataclass(frozen=True)
class Uniform(Interval):
    """Numbers from `low` to `high`, all equally likely.

    Parameters
    ----------
    low, high
        The ends.

    Examples
    --------
    >>> steppe.comparison.Uniform(0.0, 0.5).at(0.5)
    0.25

    """

    low: float
    high: float
    kind: ClassVar[str] = "uniform"

    def at(self, u: float) -> float:
        """The setting's value at the quantile u, from 0 to 1."""
        return self.low + u * (self.high - self.low)

    def draw(self, random: Random) -> float:
        """A value that a generator draws."""
        return random.uniform(self.low, self.high)


@dataclass(frozen=True)
class LogUniform(Interval):
    """Numbers from `low` to `high` whose logarithm is uniform: as many from 0.01 to 0.1 as from 0.1 to 1.

    Parameters
    ----------
    low, high
        The ends.

    Examples
    --------
    >>> steppe.LogUniform(1e-2, 1e0).at(0.5)
    0.1

    """

    low: float
    high: float
    kind: ClassVar[str] = "log_uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ValueError(f"a LogUniform law begins above 0, not at {self.low:g}: give a small number, or Uniform")

    @property
    def decades(self) -> float:
        return log(self.high / self.low, 10)

    def at(self, u: float) -> float:
        return float(self.low * (self.high / self.low) ** u)

    def draw(self, random: Random) -> float:
        # `at` rounds otherwise in the last bits, and keys of runs follow from these
        return exp(random.uniform(log(self.low), log(self.high)))


@dataclass(frozen=True)
class Integers(Interval):
    """Whole numbers from `low` to `high`, both included, all equally likely.

    Parameters
    ----------
    low, high
        The ends.

    Examples
    --------
    >>> steppe.comparison.Integers(1, 8).at(0.5)
    5

    """

    low: int
    high: int
    kind: ClassVar[str] = "integers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(x, int) for x in (self.low, self.high)):
            raise ValueError(
                f"an Integers law goes from one whole number to another, not from {self.low!r} to {self.high!r}"
            )

    def at(self, u: float) -> int:
        return min(int(self.low + u * (self.high + 1 - self.low)), self.high)

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


@dataclass(frozen=True, init=False)
class Choice:
    """One of several values, all equally likely; without an edge.

    Parameters
    ----------
    *values
        The values, or one list of them.

    Examples
    --------
    >>> steppe.comparison.Choice(10, 30, 90).at(0.5)
    30

    """

    values: tuple[Any, ...]
    kind: ClassVar[str] = "choice"

    def __init__(self, *values: Any):
        given = tuple(values[0]) if len(values) == 1 and isinstance(values[0], list | tuple) else values
        if not given:
            raise ValueError("a Choice has one value or more")
        object.__setattr__(self, "values", given)

    def at(self, u: float) -> Any:
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]

    def draw(self, random: Random) -> Any:
        return random.choice(self.values)

    def edge(self, u: float) -> str:
        return ""


Law = Uniform | LogUniform | Integers | Choice
"""The distribution of one setting."""

KINDS: Mapping[str, Any] = {law.kind: law for law in (Uniform, LogUniform, Integers, Choice)}
"""Laws by their names in files."""


def point(seed: int, index: int, dimensions: int) -> tuple[int, Sequence[float]]:
    """Return the training seed of a trial and its point in the unit cube.

    Both depend on the seed of the comparison and on the number of the trial alone. More dimensions add coordinates and
    change none, so that methods with settings of their own share the others with all methods.
    """
    import numpy as np

    random = np.random.Generator(np.random.Philox(key=np.array([seed, index], dtype=np.uint64)))
    return int(random.integers(2**31)), [float(u) for u in random.random(dimensions)]


def law_of(value: Any) -> Law:
    """Return the law that plain values describe: as in files, or one fixed value."""
    if isinstance(value, Law):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        kind, given = next(iter(value.items()))
        if kind == Choice.kind and isinstance(given, list):
            return Choice(given)
        if kind in KINDS and isinstance(given, list) and len(given) == 2:
            return KINDS[kind](*given)  # type: ignore[no-any-return]
    if isinstance(value, Mapping | list | tuple):
        raise ValueError(
            f"{value!r} is no law of a setting: write steppe.LogUniform(0.001, 1), in a file "
            "{log_uniform: [0.001, 1]}, {uniform: [0, 1]}, {integers: [1, 8]} or {choice: [10, 30]}, or one value"
        )
    return Choice(value)


def law_in(text: Any) -> Any:
    """Return the law that a text of a command line describes; other texts and values as they are.

    Examples
    --------
    >>> from steppe.core.laws import law_in
    >>> law_in("1e-3..1"), law_in("0..0.9"), law_in("10/30"), law_in("cosine")
    (LogUniform(low=0.001, high=1.0), Uniform(low=0.0, high=0.9), Choice(values=(10, 30)), 'cosine')

    """
    if not isinstance(text, str):
        return text
    low, dots, high = text.partition("..")
    try:
        if dots:
            return Uniform(float(low), float(high)) if float(low) <= 0 else LogUniform(float(low), float(high))
    except ValueError as error:
        if "law goes" in str(error):
            raise
        raise ValueError(f"{text!r} is no law of a setting: write LOW..HIGH, as in 0.001..1, or A/B/C") from error
    return Choice(*map(read_plain, text.split("/"))) if "/" in text else text


def as_plain(law: Law) -> Any:
    """Return a law as plain values, as `law_of` reads them."""
    if not isinstance(law, Law):
        raise TypeError(f"{law!r} is no law: use steppe.LogUniform, steppe.comparison.Uniform, .Integers or .Choice")
    if isinstance(law, Choice) and len(law.values) == 1 and not isinstance(law.values[0], Mapping | list | tuple):
        return law.values[0]
    return {law.kind: list(parts_of(law))}


def parts_of(law: Law) -> tuple[Any, ...]:
    """Return the ends of a law, or all values of a choice."""
    return law.values if isinstance(law, Choice) else (law.low, law.high)
