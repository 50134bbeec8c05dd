"""The runs of a study as values: settings, errors and measured flatness, and columns over all runs; without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from types import NoneType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._util.names import unknown
from .grid import value_at
from .statistics.kendall import Floats

PLAIN = (str, int, float, bool, NoneType)
State = Literal["done", "failed", "running", "open"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured number: a `steppe.Estimate` without torch.

    Attributes
    ----------
    value, stderr : float
        The number and its standard error, nan if unknown.
    n : int
        Independent draws.
    kind : str
        What the number is, such as "unbiased" or "lower bound".
    cost : mapping of str to float
        Passes over the measured rows.
    seconds : float
        Time.
    note : str
        A remark.
    complete : bool
        Whether all draws were made.

    Examples
    --------
    >>> trace = steppe.studies.Measured(2.5, stderr=0.1, n=16, kind="unbiased")
    >>> trace.value, trace.complete
    (2.5, True)

    """

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
    """One cell of a study with its results.

    Attributes
    ----------
    key, name : str
        The cell's key, and its name for people.
    config, groups : mapping
        The configuration, and the groups it is compared within.
    state : {"done", "failed", "running", "open"}
        The cell's state.
    targets, target_errors, meta : mapping of str to float
        Targets, their standard errors, and other numbers.
    measures : mapping of str to Measured
        Measured flatness.
    failures : mapping of str to str
        Why measures have no value.
    error : str
        Why the cell failed.
    rows : array of bool, optional
        Per test row, whether the run classifies it correctly; the same rows in the same order for all runs of a study.
    contender : str
        What the run is of in a comparison, such as "sam rho=0.1"; found from its configuration if it is empty.

    Examples
    --------
    >>> config = {"method": "sam", "method_options": {"n": 2}}
    >>> run = steppe.studies.Run("key", "sam n=2", config, {}, "done", targets={"test_error": 0.25})
    >>> run.targets["test_error"], run.setting("method_options.n"), run.setting("lr")
    (0.25, 2, None)

    """

    key: str
    name: str
    config: Mapping[str, Any]
    groups: Mapping[str, Any]
    state: State
    targets: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, Measured] = field(default_factory=dict)
    target_errors: Mapping[str, float] = field(default_factory=dict)
    meta: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    rows: NDArray[np.bool_] | None = field(default=None, repr=False, compare=False)
    contender: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """Targets, measures and other numbers by name."""
        return {**self.meta, **{name: m.value for name, m in self.measures.items()}, **self.targets}

    def setting(self, path: str) -> Any:
        """A value of the configuration, nested ones as `method_options.n`; None if there is none."""
        return value_at(self.config, path)


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity over all runs of a table: values and standard errors, nan if missing.

    Attributes
    ----------
    name : str
        The measure or the target.
    values, errors : array of float
        One number per run, and their standard errors.

    Examples
    --------
    A `Table` makes them:

    >>> runs = [
    ...     steppe.studies.Run(f"key {i}", f"run {i}", {"lr": i / 10}, {}, "done", {"test_error": i / 100})
    ...     for i in range(2)
    ... ]
    >>> steppe.studies.Table(runs).target("test_error")
    Column(name='test_error', values=array([0.  , 0.01]), errors=array([nan, nan]))

    """

    name: str
    values: Floats
    errors: Floats


@dataclass(frozen=True)
class Table:
    """The runs of a study in the order of its plan.

    Parameters
    ----------
    runs : list of Run
        The runs.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(f"key {i}", f"run {i}", {"lr": i / 10}, {}, "done", {"test_error": i / 100})
    ...     for i in range(2)
    ... ]
    >>> table = steppe.studies.Table(runs)
    >>> len(table), table.targets, table.settings(), len(table.where(lambda run: run.setting("lr") > 0))
    (2, ['test_error'], ['lr'], 1)

    """

    runs: list[Run]

    def __len__(self) -> int:
        return len(self.runs)

    @cached_property
    def measures(self) -> list[str]:
        """The measures that any run has."""
        return list(dict.fromkeys(name for run in self.runs for name in run.measures))

    @cached_property
    def targets(self) -> list[str]:
        """The targets that any run has."""
        return list(dict.fromkeys(name for run in self.runs for name in run.targets))

    def measure(self, name: str) -> Column:
        """A measure over all runs."""
        if name not in self.measures:
            raise ValueError(unknown("measure", name, self.measures))
        missing = Measured(nan)
        values = [run.measures.get(name, missing) for run in self.runs]
        return Column(name, np.array([v.value for v in values], float), np.array([v.stderr for v in values], float))

    def target(self, name: str) -> Column:
        """A target over all runs."""
        if name not in self.targets:
            raise ValueError(unknown("target", name, self.targets))
        values = np.array([run.targets.get(name, nan) for run in self.runs], float)
        return Column(name, values, np.array([run.target_errors.get(name, nan) for run in self.runs], float))

    def setting(self, path: str) -> NDArray[Any]:
        """A setting over all runs as in the configurations, lists and mappings as JSON; None if a run has none."""
        column = np.empty(len(self.runs), dtype=object)
        column[:] = [as_text(run.setting(path)) for run in self.runs]
        return column

    def settings(self) -> list[str]:
        """The settings that differ between runs, nested ones as `method_options.n`.

        A setting that a run does not have is None there, as in `setting`. An empty mapping is no value.
        """
        return list(self._differing)

    @cached_property
    def _differing(self) -> list[str]:
        names = dict.fromkeys(name for run in self.runs for name in run.config)
        varied = {name for name in names if not _is_constant([run.config.get(name) for run in self.runs])}
        configs = [dict(_leaves({k: v for k, v in run.config.items() if k in varied})) for run in self.runs]
        paths = dict.fromkeys(path for config in configs for path in config)
        return [path for path in paths if len({repr(config.get(path)) for config in configs}) > 1]

    def labels(self) -> NDArray[np.str_]:
        """Each run's group in words, `augment=flip, mixup=0`; empty if the study has no groups."""
        return np.array([", ".join(f"{k}={word(v)}" for k, v in run.groups.items()) for run in self.runs], dtype=str)

    def where(self, holds: Callable[[Run], bool]) -> Table:
        """The runs for which a condition holds."""
        runs = [run for run in self.runs if holds(run)]
        return Table(runs) if len(runs) < len(self.runs) else self  # with what it has found out about its columns


def _is_constant(column: Sequence[Any]) -> bool:
    """Whether all are one plain value, as most settings of a large study are; 1, 1.0 and true are three."""
    return len(set(map(type, column))) == 1 and type(column[0]) in PLAIN and column.count(column[0]) == len(column)


def _leaves(config: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if type(value) not in PLAIN and isinstance(value, Mapping):  # whose test is slow for what is none
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def as_text(value: Any) -> Any:
    """Lists and mappings as JSON; other values as they are."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, Mapping)) else value


def word(value: Any) -> str:
    """A value of a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
