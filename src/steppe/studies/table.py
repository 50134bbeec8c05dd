"""What a study knows, as values: runs with their settings, errors and measured flatness, and columns over all runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._util.names import unknown
from .kendall import Floats

State = Literal["done", "failed", "running", "open"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A number with its error and its kind, as `steppe.Estimate` has them, and what it took; without torch."""

    value: float
    stderr: float = nan
    n: int = 1
    kind: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)
    seconds: float = nan
    note: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """One cell of a study: its configuration, the groups that it is compared in, and what came out."""

    key: str
    name: str
    config: Mapping[str, Any]
    groups: Mapping[str, Any]
    state: State
    targets: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, Measured] = field(default_factory=dict)
    target_errors: Mapping[str, float] = field(default_factory=dict)
    meta: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)  # why measures have no value
    error: str = ""

    def setting(self, path: str) -> Any:
        """A value of the configuration, `method_options.n` for one inside another; None where there is none."""
        found: Any = self.config
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity over all runs of a table: values and standard errors, nan where there are none."""

    name: str
    values: Floats
    errors: Floats


@dataclass(frozen=True)
class Table:
    """The runs of a study, in the order in which they were planned; columns are made once, for reading only."""

    runs: list[Run]

    def __len__(self) -> int:
        return len(self.runs)

    @cached_property
    def measures(self) -> list[str]:
        """The measures that any run has."""
        return _names(run.measures for run in self.runs)

    @cached_property
    def targets(self) -> list[str]:
        """The generalisation targets that any run has."""
        return _names(run.targets for run in self.runs)

    def measure(self, name: str) -> Column:
        """A measure over all runs."""
        if name not in self._measures:
            self._refuse("measure", name, self.measures)
            found = [run.measures.get(name, _NOTHING) for run in self.runs]
            self._measures[name] = _column(name, [f.value for f in found], [f.stderr for f in found])
        return self._measures[name]

    def target(self, name: str) -> Column:
        """A target over all runs."""
        self._refuse("target", name, self.targets)
        errors = [run.target_errors.get(name, nan) for run in self.runs]
        return _column(name, [run.targets.get(name, nan) for run in self.runs], errors)

    def setting(self, path: str) -> NDArray[Any]:
        """A setting over all runs, as it stands in the configurations; None where a run has none."""
        if path not in self._settings:
            column = np.empty(len(self.runs), dtype=object)
            column[:] = [_hashable(run.setting(path)) for run in self.runs]
            column.flags.writeable = False
            self._settings[path] = column
        return self._settings[path]

    def settings(self) -> list[str]:
        """The settings that are not the same in all runs, those inside another as `method_options.n`.

        A setting that a run does not have is None there, as for `setting`. An empty mapping is no value.
        """
        return self._differing[:]

    @cached_property
    def _measures(self) -> dict[str, Column]:
        return {}

    @cached_property
    def _settings(self) -> dict[str, NDArray[Any]]:
        return {}

    @cached_property
    def _differing(self) -> list[str]:
        first: dict[str, Any] = {}
        there: Counter[str] = Counter()
        differ = set()
        for run in self.runs:
            for path, value in _leaves(run.config):
                there[path] += 1
                if path not in first:
                    first[path] = value
                elif value is not first[path] and path not in differ and repr(value) != repr(first[path]):
                    differ.add(path)
        n = len(self.runs)
        return [p for p in first if p in differ or (there[p] < n and first[p] is not None)]

    def labels(self) -> NDArray[np.str_]:
        """Each run's group in words, `augment=flip, mixup=0`; empty where a study has no groups."""
        return np.array([", ".join(f"{k}={_word(v)}" for k, v in run.groups.items()) for run in self.runs], dtype=str)

    def where(self, holds: Callable[[Run], bool]) -> Table:
        """The runs for which something holds, such as training error of at most 1 %."""
        return Table([run for run in self.runs if holds(run)])

    def _refuse(self, what: str, name: str, known: list[str]) -> None:
        if name not in known:
            raise ValueError(unknown(what, name, known))


_NOTHING = Measured(nan)


def _names(of_runs: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for those in of_runs for name in those))


def _column(name: str, values: list[float], errors: list[float]) -> Column:
    """Arrays that many share, and nobody writes to."""
    column = Column(name, np.array(values, dtype=np.float64), np.array(errors, dtype=np.float64))
    column.values.flags.writeable = column.errors.flags.writeable = False
    return column


def _leaves(config: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _hashable(value: Any) -> Any:
    return _word(value) if isinstance(value, (list, tuple, dict)) else value


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
