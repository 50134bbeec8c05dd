"""The protocol of an experiment in a study's file: budgets, admission, selection, tables and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import log, log10, nan, sqrt
from operator import ge, gt, le, lt
from typing import Any, Literal, get_args

from .._util.names import unknown
from .grid import mapping, settings, types
from .points import Grid

BY = ("validation_error", "validation_loss")
Stage = Literal["final", "sweep", "all"]
Draw = Literal["points", "lines", "scatter"]
Hypothesis = Literal["strong", "within groups", "weak"]
CHOICES = {"runs": get_args(Stage), "draw": get_args(Draw), "hypothesis": get_args(Hypothesis)}
TAU = "tau"  # the value of a table of correlations
OF_TAU = ("measure", "target", "group")  # what rows and columns of such a table are
VALUE, EPOCH = "value", "epoch"  # rows or columns that are no settings
SCALES: Mapping[str, Callable[[float], float]] = {
    "accuracy": lambda value: 1 - value,
    "percent": lambda value: 100 * value,
    "minutes": lambda value: value / 60,
    "log": lambda value: log(value) if value > 0 else nan,
    "log10": lambda value: log10(value) if value > 0 else nan,
    "sqrt": lambda value: sqrt(value) if value >= 0 else nan,
    "ratio": lambda value: value,  # to the mean of the reference row
}
"""What can be done to the numbers of a table."""
COMPARISONS = {"<=": le, "<": lt, ">=": ge, ">": gt}


@dataclass(frozen=True)
class Rule:
    """A bound on a target or a measure; only runs within it count."""

    name: str
    comparison: str
    bound: float

    @classmethod
    def of(cls, text: Any) -> Rule:
        """Parse `train_error <= 0.01`."""
        number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
        match = re.fullmatch(rf"\s*(\S+?)\s*(<=|>=|<|>)\s*({number})\s*", str(text))
        if match is None:
            raise ValueError(f"admission takes rules such as `train_error <= 0.01`, not {text!r}")
        return cls(match[1], match[2], float(match[3]))

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether a run with these numbers is within the bound; False if the number is missing."""
        value = values.get(self.name)
        return value is not None and bool(COMPARISONS[self.comparison](value, self.bound))

    def __str__(self) -> str:
        return f"{self.name} {self.comparison} {self.bound:g}"


def with_budget(content: Mapping[str, Any], budgets: Mapping[str, Any], budget: str) -> dict[str, Any]:
    """The content of a study's file with the changes of a budget; mappings merge, lists replace, null removes."""
    if budget not in budgets:
        raise ValueError(unknown("budget of this study", budget, budgets))
    changes = budgets[budget] or {}
    if not isinstance(changes, Mapping) or "budgets" in changes:
        raise ValueError(f"budgets.{budget} takes keys of a study, as in {{base: {{epochs: 2}}}}, not {changes!r}")
    return _merged(content, changes)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(old)
    for key, value in new.items():
        if value is None:
            values.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(values.get(key), Mapping):
            values[key] = _merged(values[key], value)
        else:
            values[key] = value
    return values


@dataclass(frozen=True)
class Select:
    """A second stage: per combination of settings, the best configuration on validation rows is trained again.

    Parameters
    ----------
    by : str
        The target whose mean over seeds decides; the lowest wins.
    per : sequence of str
        Settings, or axes of the grid; each combination of their values has a winner.
    runs : Grid
        Settings of the final runs, such as other seeds.
    base : mapping
        Settings that differ from the first stage in all final runs, such as `validation: 0`.
    predict : {"final", "sweep", "all"}
        The runs that are measured, and over which measures are correlated with targets; final runs are compared.

    """

    by: str
    per: Sequence[str]
    runs: Grid
    base: Mapping[str, Any] = field(default_factory=dict)
    predict: Stage = "final"

    @classmethod
    def of(cls, values: Any) -> Select:
        """Parse `{by: validation_error, per: [method], runs: {seed: [100, 101]}, base: {validation: 0}}`."""
        values = mapping(values, "select", "by, per, runs, base and predict", [f.name for f in fields(cls)])
        by, per = values.get("by", BY[0]), names(values.get("per"), "select.per")
        if by not in BY:
            raise ValueError(
                f"select.by is {by!r}: configurations are selected on validation rows, by {' or '.join(BY)}"
            )
        if not per:
            raise ValueError("select.per names the settings whose values each have a winner, as in [method, data]")
        runs = Grid.of(values.get("runs", {"seed": [100, 101, 102]}), "select.runs")
        base = mapping(values.get("base", {}), "select.base", "settings of a run, as in {validation: 0}")
        predict = values.get("predict", "final")
        if predict not in get_args(Stage):
            raise ValueError(f"select.predict: {unknown('stage', str(predict), get_args(Stage))}")
        return cls(by, per, runs, settings(base, "select.base"), predict)


@dataclass(frozen=True)
class TableSpec:
    """A table or figure of a study: which number stands in each cell. docs/papers.md has the grammar.

    Parameters
    ----------
    rows, columns : sequence of str
        Settings or axes of the grid, or one of `value`, `epoch`, `measure`, `target`, `group`; empty for one row.
    value : sequence of str
        Targets, measures or other numbers of a run; or `tau`, the correlation of a measure with a target.
    name, title : str
        The table's name, which paper.csv uses, and its heading.
    scale : mapping of str to sequence of str
        The key `as`: what is done to each value, in order; the entry "" is for all values.
    reference : str
        The row that the others are compared with, paired by seed.
    runs : {"final", "sweep", "all"}
        The runs of a study with `select` that enter.
    where : mapping of str to list
        Settings, and the values that they have in runs of this table.
    labels : mapping of str to str
        Shown names of rows and columns.
    draw : {"points", "lines", "scatter"}
        How the page draws it.
    x : str
        The number on the horizontal axis of a scatter.
    hypothesis : {"strong", "within groups", "weak"}
        Which pairs of runs tau compares.
    target : str
        For tau: a setting with numbers, such as lr, in the place of the study's targets.
    last : int
        The mean over the last so many epochs on record of each run, instead of its final number.

    """

    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    value: Sequence[str] = ("test_error",)
    name: str = "table"
    title: str = ""
    scale: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reference: str = ""
    runs: Stage = "final"
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    draw: Draw = "points"
    x: str = ""
    hypothesis: Hypothesis = "strong"
    target: str = ""
    last: int = 0

    @classmethod
    def of(cls, values: Any, place: str) -> TableSpec:
        """Parse `{rows: method, columns: data, value: test_error, as: accuracy percent}`."""
        keys = ["as" if f.name == "scale" else f.name for f in fields(cls)]
        values = mapping(values, place, "rows, columns and value, as in {rows: method, columns: data}", keys)
        parsed = {key: value for key, value in values.items() if key != "as" and value is not None}
        for key, value in parsed.items():
            if key in ("rows", "columns", "value"):
                parsed[key] = names(value, f"{place}.{key}")
            elif key in CHOICES:
                if value not in CHOICES[key]:
                    raise ValueError(f"{place}: {unknown(key, str(value), CHOICES[key])}")
            elif key == "where":
                of_settings = mapping(value, f"{place}.{key}", "a mapping").items()
                parsed[key] = {name: v if isinstance(v, list) else [v] for name, v in of_settings}
            elif key == "labels":
                parsed[key] = {name: str(v) for name, v in mapping(value, f"{place}.{key}", "a mapping").items()}
            elif key == "last":
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ValueError(f"{place}.{key} is a number of epochs, 1 or more, not {value!r}")
            else:
                parsed[key] = str(value)
        spec = cls(**parsed, scale=_scales(values.get("as"), place))
        spec._check(place)
        return spec

    @property
    def is_tau(self) -> bool:
        """Whether the numbers are correlations."""
        return self.value == (TAU,)

    def _check(self, place: str) -> None:
        if self.is_tau:
            wrong = [name for name in (*self.rows, *self.columns) if name not in OF_TAU]
            if wrong or not (self.rows or self.columns):
                raise ValueError(f"{place}: rows and columns of tau are of {', '.join(OF_TAU)}, not {wrong}")
        elif self.target:
            raise ValueError(f"{place}: target is for `value: {TAU}`; a scatter has `x: {self.target}`")
        if len(self.value) > 1 and VALUE not in (*self.rows, *self.columns):
            raise ValueError(f"{place}: several values need `rows: {VALUE}` or `columns: {VALUE}`")
        if EPOCH in self.rows:
            raise ValueError(f"{place}: epochs are columns: write `columns: {EPOCH}`")
        if self.last and (self.is_tau or self.x or EPOCH in self.columns):
            raise ValueError(f"{place}: last is for values of runs, not for tau, a scatter or `columns: {EPOCH}`")
        if (self.draw == "scatter") != bool(self.x):
            raise ValueError(f"{place}: `draw: scatter` and `x: NAME` go together")


def check_settings(paths: Iterable[str], axes: Iterable[str], place: str) -> None:
    """Raise for a name that is neither a setting of a run nor one of the axes."""
    valid = {*types(), *axes}
    for name in paths:
        if name not in valid and name.partition(".")[0] not in types():
            raise ValueError(f"{place}: {unknown('setting or axis', name, valid)}")


WHICH = {
    "best": "the lowest value of the first target",
    "worst": "the highest value of the first target",
    "flattest": "the lowest value of the first measure",
    "sharpest": "the highest value of the first measure",
}
"""Runs that pictures can show, among those that count."""

PICTURES = {"spectrum": ("best", "worst"), "landscape": ("flattest", "sharpest"), "ensembles": ()}
"""Pictures, with the runs that they show by default."""


@dataclass(frozen=True)
class Show:
    """Pictures for the report, computed when all runs are measured; none by default.

    Parameters
    ----------
    spectrum, landscape : sequence of str
        The runs (keys of `WHICH`) whose Hessian spectra, or whose losses around the weights, are compared.
    ensembles : bool
        Whether runs that differ in their seed alone are scored as ensembles.

    """

    spectrum: Sequence[str] = ()
    landscape: Sequence[str] = ()
    ensembles: bool = False

    @classmethod
    def of(cls, value: Any) -> Show:
        """Parse `[spectrum, ensembles]` or `{spectrum: [best, flattest], ensembles: true}`."""
        pictures = value
        if not isinstance(value, Mapping):
            pictures = dict.fromkeys(names(value, "show", f"{', '.join(PICTURES)}, or a mapping of them"), True)
        parsed: dict[str, Any] = {}
        for name, runs in pictures.items():
            if name not in PICTURES:
                raise ValueError(f"show: {unknown('picture', str(name), PICTURES)}")
            if runs is None or isinstance(runs, bool):
                shown = runs is not False
                parsed[name] = shown if name == "ensembles" else PICTURES[name] if shown else ()
            elif name == "ensembles":
                raise ValueError(f"show.ensembles takes true or false, not {runs!r}")
            else:
                parsed[name] = names(runs, f"show.{name}", ", ".join(WHICH))
                for run in parsed[name]:
                    if run not in WHICH:
                        raise ValueError(f"show.{name}: {unknown('choice of runs', run, WHICH)}")
        return cls(**parsed)

    def words(self) -> list[str]:
        """Each picture with its runs."""
        of_runs = {"spectrum": self.spectrum, "landscape": self.landscape}
        lines = [f"{name} of {', '.join(which)}" for name, which in of_runs.items() if which]
        return [*lines, *(["ensembles"] if self.ensembles else [])]


def tables(values: Any) -> tuple[TableSpec, ...]:
    """The tables of a study: one mapping, or a list of mappings with different names."""
    listed = values if isinstance(values, list) else [values]
    specs = tuple(TableSpec.of(v, f"table {i + 1}" if len(listed) > 1 else "table") for i, v in enumerate(listed))
    titles = [spec.name for spec in specs]
    if len(set(titles)) < len(titles):
        raise ValueError(f"tables of one study need different names, not {', '.join(titles)}")
    return specs


def _scales(value: Any, place: str) -> dict[str, tuple[str, ...]]:
    texts = {} if value is None else value if isinstance(value, Mapping) else {"": value}
    scales = {str(name): tuple(str(text).split()) for name, text in texts.items()}
    for word in (word for words in scales.values() for word in words):
        if word not in SCALES:
            raise ValueError(f"{place}.as: {unknown('scale', word, SCALES)}")
    return scales


def names(value: Any, place: str, what: str = "names") -> tuple[str, ...]:
    """The names in a list, each once; or one name."""
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{place} takes a list of {what}, not {value!r}")
    return tuple(dict.fromkeys(listed))
