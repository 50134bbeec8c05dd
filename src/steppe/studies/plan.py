"""A study as one value, without torch: which runs, what is measured, and the targets it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from .._util.formats import from_yaml
from .._util.names import unknown
from .engines.settings import EngineSettings
from .grid import Draws, Grid, settings, types
from .measured import measures_in, names_in, normalise_in, ood_in
from .protocol import EPOCH, OF_TAU, VALUE, Rule, Select, TableSpec, check_settings, known_keys, tables, with_budget
from .show import Show

TARGETS = {
    "test_error": "share of wrong answers on test rows",
    "test_loss": "mean loss on test rows",
    "gap": "test error minus training error",
    "loss_gap": "test loss minus training loss",
    "corrupted_error": "share of wrong answers on corrupted test rows; needs `corruptions` in base",
    "validation_error": "share of wrong answers on validation rows; needs `validation` in base",
    "validation_loss": "mean loss on validation rows, likewise",
    "train_error": "share of wrong answers on training rows, with the final weights and without augmentation",
    "train_loss": "mean loss on training rows, likewise",
}
"""Numbers of a trained run that a study can predict."""

TEXTS = ("title", "question", "notes")
"""Keys of a study that describe it to readers and change nothing else."""

STORE = "study.sqlite"  # in the study's folder

# A modern look, section 4: "worst-case l_inf adaptive sharpness with low m", with and without normalised logits
USUAL = ("adaptive_worst_linf", "adaptive_worst_linf_normalised", "lambda_max", "trace")


@dataclass(frozen=True)
class Study:
    """A plan: runs to train or a pool of checkpoints, and what is measured and predicted.

    Parameters
    ----------
    name : str
        The study's name.
    base : mapping
        Settings of `steppe train` that all runs share.
    grid : Grid
        Settings with lists of values; every combination is a run.
    random : Draws, optional
        Settings with ranges; n random draws are runs. With a grid, each draw runs at each point of it.
    pool : str, optional
        Checkpoints or run folders instead, as a pattern such as path/*.safetensors.
    errors : str, optional
        A CSV file with the errors of the pool: a column `checkpoint`, targets, and other columns.
    normalise : str, optional
        How inputs of files in the pool were normalised in training, as in `steppe measure`; in a file also a mapping of
        mean and std.
    ood : mapping of str to str
        Test sets under another distribution, `folder:PATH` or `npz:PATH` by name; NAME_error is a target.
    tolerance : float
        The largest difference between computed errors and those in `errors`; tables often have two decimals.
    measures : sequence of str
        Names, with a radius and options as in worst_linf@0.002[m=64]; a file may also name a paper's grid of radii.
    measure_every : int, optional
        Epochs between measurements along each run, for its curves; runs that have begun keep their own.
    targets : sequence of str
        Keys of `TARGETS`, and NAME_error of test sets in `ood`.
    groups : sequence of str
        Settings whose values define groups, for correlations within groups.
    admission : sequence of Rule
        Bounds that a run has to satisfy to count.
    show : Show
        Pictures for the report.
    engine : EngineSettings
        Where cells are computed.
    select : Select, optional
        A second stage: the best configurations on validation rows, trained again.
    table : sequence of TableSpec
        Tables of results.
    budgets : mapping
        Changes of the file by name, such as a smaller grid.
    budget : str
        The name of the one that applies; empty for none.
    out : str
        The study's folder; defaults to studies/NAME. A budget has a folder of its own in it.
    title, question, notes : str
        Texts for readers of the report: a heading, the question that the study answers, and anything else.
    file : str, optional
        The file that the study was read from.

    Examples
    --------
    >>> content = {"base": {"data": "digits", "epochs": 5}, "grid": {"lr": [0.1, 0.2], "seed": [0, 1]}}
    >>> study = steppe.studies.Study.of(content, "rates")
    >>> str(study.folder), list(study.grid.axes), study.targets
    ('studies/rates', ['lr', 'seed'], ('test_error', 'gap'))

    """

    name: str
    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid = field(default_factory=Grid)
    random: Draws | None = None
    pool: str | None = None
    errors: str | None = None
    normalise: str | None = None
    ood: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.005
    measures: Sequence[str] = USUAL
    measure_every: int | None = None
    targets: Sequence[str] = ("test_error", "gap")
    groups: Sequence[str] = ()
    admission: Sequence[Rule] = ()
    show: Show = field(default_factory=Show)
    engine: EngineSettings = field(default_factory=EngineSettings)
    select: Select | None = None
    table: Sequence[TableSpec] = ()
    budgets: Mapping[str, Any] = field(default_factory=dict)
    budget: str = ""
    out: str = ""
    title: str = ""
    question: str = ""
    notes: str = ""
    file: str | None = None

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return Path(self.out or Path("studies") / self.name) / self.budget

    @property
    def store(self) -> Path:
        """The SQLite file with the study's records."""
        return self.folder / STORE

    def run_folder(self, key: str) -> str:
        """The folder of a cell's run."""
        return str(self.folder / "runs" / key)

    @classmethod
    def of(cls, given: Mapping[str, Any], name: str, budget: str | None = None) -> Study:
        """Make a study from the content of its file.

        Parameters
        ----------
        given : mapping
            Keys and values as in docs/studies.md.
        name : str
            The study's name.
        budget : str, optional
            The name of the changes under `budgets` that apply; none by default.

        Raises
        ------
        ValueError
            For an unknown key or a wrong value, with the nearest that exists.

        """
        for key in given:
            if key in types() and key not in KEYS:
                raise ValueError(
                    f"{key} is a setting of a run: write it under `base`, or under `grid` with a list of values"
                )
        given = {RENAMED.get(key, key): value for key, value in given.items()}
        known_keys(given, KEYS, "key of a study")
        budgets, given = given.get("budgets") or {}, with_budget(given, budget)
        for other in budgets if budget is None else ():
            cls._of_budget(with_budget({**given, "budgets": budgets}, other), name, other)
        values: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        if "normalise" in values:
            values["normalise"] = normalise_in(values["normalise"])
        for key in (*TEXTS, "pool", "errors", "out"):
            if key in values:
                values[key] = _text(key, values[key])
        _check_pool(values)
        values["ood"] = ood_in(values.get("ood", {}), TARGETS)
        every = values.get("measure_every", 1)
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"measure_every takes a number of epochs, 1 or more, not {every!r}")
        base = values.get("base", {})
        if not isinstance(base, Mapping):
            raise ValueError(f"base takes settings of a run, as in {{data: digits, lr: 0.1}}, not {base!r}")
        for key in base:
            if key in KEYS and key not in types():
                raise ValueError(f"base.{key}: {key} is a key of the study: move it out of `base`")
        values["base"] = {"threads": 1} | settings(base, "base")
        if "grid" in values:
            values["grid"] = Grid.of(values["grid"], "grid")
        if "random" in values:
            values["random"] = Draws.of(values["random"], "random")
        own_columns = bool(values.get("errors"))  # a CSV file may have columns of any name
        values["measures"] = measures_in(values.get("measures", list(USUAL)))
        shifted = [f"{name}_error" for name in values["ood"]]
        values["targets"] = _targets(values.get("targets", ["test_error", "gap", *shifted]), shifted, own_columns)
        values["groups"] = _groups(values.get("groups", []), own_columns)
        rules = values.get("admission", [])
        values["admission"] = tuple(Rule.of(rule) for rule in (rules if isinstance(rules, list) else [rules]))
        values["show"] = Show.of(values.get("show", []))
        values["engine"] = EngineSettings.of(values.get("engine", {}))
        values |= {"select": Select.of(values["select"])} if "select" in values else {}
        values["table"] = tables(values["table"]) if "table" in values else ()
        study = cls(name, **values, budgets=budgets, budget=budget or "")
        study._check_targets()
        study._check_protocol()
        return study

    def _check_protocol(self) -> None:
        """Raise for names in `select` and `table` that are neither settings nor axes."""
        axes = [*self.grid.axes, *self.groups, *(self.select.runs.axes if self.select is not None else ())]
        if self.select is not None:
            check_settings(self.select.per, axes, "select.per")
            if self.pool is not None:
                raise ValueError("select trains the best configurations again, and a pool is trained: leave it out")
        for spec in self.table:
            words = OF_TAU if spec.is_tau else (VALUE, EPOCH)
            check_settings([*spec.rows, *spec.columns, *spec.where], [*axes, *words], f"table {spec.name}")
            check_settings([spec.target] if spec.target else [], [], f"table {spec.name}")

    @classmethod
    def _of_budget(cls, given: Mapping[str, Any], name: str, budget: str) -> None:
        """Raise if the study is wrong with the changes of a budget."""
        try:
            cls.of(given, name)
        except ValueError as error:
            raise ValueError(f"budgets.{budget}: {error}") from error

    def _check_targets(self) -> None:
        """Raise for a target that no run would have."""
        names = {*self.base, *(k for axis in self.grid.axes.values() for value in axis for k in value)}
        needs = {"corrupted_error": "corruptions", "validation_error": "validation", "validation_loss": "validation"}
        for target, needed in needs.items():
            selected = self.select is not None and self.select.by == target
            if (target in self.targets or selected) and self.pool is None and needed not in names:
                raise ValueError(f"the target {target} needs {needed} in base: {TARGETS[target]}")


RENAMED = {"standardise": "normalise"}  # earlier names of keys, which still work
KEYS = tuple(f.name for f in fields(Study) if f.name not in ("name", "file", "budget"))
"""Keys of a study's file."""


def digits() -> Study:
    """The study that comes with steppe, digits.yaml."""
    file = files(__package__) / "digits.yaml"
    return Study.of(from_yaml(file.read_text(encoding="utf-8"), str(file)), "digits")


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        hint = ""
        if isinstance(value, list):
            hint = ": one pattern with * covers several files" if key == "pool" else ": write one text"
        elif not isinstance(value, Mapping):
            hint = f": quote it, {key}: '{value}'"
        elif key in TEXTS:
            hint = f". A text with a colon needs quotes, {key}: '...', or its own lines below `{key}: |`"
        raise ValueError(f"{key} takes a text, not {value!r}{hint}")
    return value.strip() if key == "notes" else " ".join(value.split()) if key in TEXTS else value


def _check_pool(values: Mapping[str, Any]) -> None:
    """Raise for keys of a pool without one, or beside runs to train."""
    if "pool" in values and ("grid" in values or "random" in values):
        raise ValueError("a study has a pool of checkpoints, or a grid or random draws of runs to train: not both")
    if "errors" in values and "pool" not in values:
        raise ValueError("errors is the CSV file of a pool of checkpoints: there is no `pool`")
    if "normalise" in values and "pool" not in values:
        raise ValueError("normalise is for a pool of checkpoints: there is no `pool`. Runs record their own")
    if "measure_every" in values and "pool" in values:
        raise ValueError("measure_every measures runs while they train, and a pool is trained: leave it out")
    tolerance = values.get("tolerance", 0)
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not tolerance >= 0:
        raise ValueError(f"tolerance takes a number, 0 or more, not {tolerance!r}")


def _targets(value: Any, shifted: Sequence[str], own_columns: bool) -> tuple[str, ...]:
    names = names_in(value, "targets")
    for name in names:
        if name not in (*TARGETS, *shifted) and not own_columns:
            raise ValueError(unknown("target", name, (*TARGETS, *shifted)))
    if not names:
        raise ValueError("targets is empty: name what to predict, such as test_error")
    return tuple(names)


def _groups(value: Any, own_columns: bool) -> tuple[str, ...]:
    names = names_in(value, "groups")
    for name in names:
        if name.split(".")[0] not in types() and not own_columns:
            raise ValueError(f"groups: {unknown('setting', name, types())}")
    return tuple(names)
