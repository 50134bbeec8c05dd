"""What a study knows, as values: runs with their settings, errors and measured flatness, and columns over all runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..names import unknown
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
    """The runs of a study, in the order in which they were planned."""

    runs: list[Run]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def measures(self) -> list[str]:
        """The measures that any run has."""
        return _names(run.measures for run in self.runs)

    @property
    def targets(self) -> list[str]:
        """The generalisation targets that any run has."""
        return _names(run.targets for run in self.runs)

    def measure(self, name: str) -> Column:
        """A measure over all runs."""
        self._refuse("measure", name, self.measures)
        found = [run.measures.get(name, _NOTHING) for run in self.runs]
        return Column(name, np.array([f.value for f in found]), np.array([f.stderr for f in found]))

    def target(self, name: str) -> Column:
        """A target over all runs."""
        self._refuse("target", name, self.targets)
        values = np.array([run.targets.get(name, nan) for run in self.runs])
        return Column(name, values, np.array([run.target_errors.get(name, nan) for run in self.runs]))

    def setting(self, path: str) -> NDArray[Any]:
        """A setting over all runs, as it stands in the configurations; None where a run has none."""
        column = np.empty(len(self.runs), dtype=object)
        column[:] = [_hashable(run.setting(path)) for run in self.runs]
        return column

    def settings(self) -> list[str]:
        """The settings that are not the same in all runs, those inside another as `method_options.n`."""
        paths = dict.fromkeys(path for run in self.runs for path in _paths(run.config))
        return [path for path in paths if len(set(map(repr, self.setting(path)))) > 1]

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


def _paths(config: Mapping[str, Any], above: str = "") -> Iterable[str]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _hashable(value: Any) -> Any:
    return _word(value) if isinstance(value, (list, tuple, dict)) else value


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
