"""A study as one value, without torch: which runs, what is measured, and the targets it is compared with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from .._util.formats import from_yaml
from .._util.measure_names import MeasureName, canonical_number
from .._util.names import unknown
from ..core.fields import fits, words
from ..data.registry import CHOICES, declared, split_name
from .engines.engine import EngineSettings
from .grid import mapping, settings, types
from .points import Draws, Grid, Part
from .protocol import EPOCH, OF_TAU, VALUE, Rule, Select, Show, TableSpec, check_settings, names, tables, with_budget


class Target(NamedTuple):
    """A number of a trained run that a study can predict: in a few words, in a sentence, and the setting it needs."""

    label: str
    about: str
    needs: str = ""


TARGETS = {
    "test_error": Target("test error", "share of wrong answers on test samples"),
    "test_loss": Target("test loss", "mean loss on test samples"),
    "gap": Target("generalisation gap", "test error minus training error"),
    "loss_gap": Target("gap of the losses", "test loss minus training loss"),
    "corrupted_error": Target(
        "error on corrupted samples", "share of wrong answers on corrupted test samples", "corruptions"
    ),
    "validation_error": Target("validation error", "share of wrong answers on validation samples", "validation"),
    "validation_loss": Target("validation loss", "mean loss on validation samples", "validation"),
    "train_error": Target(
        "training error", "share of wrong answers on training samples, with the final weights and without augmentation"
    ),
    "train_loss": Target(
        "training loss", "mean loss on training samples, with the final weights and without augmentation"
    ),
}

TEXTS = ("title", "question", "notes")
"""Keys of a study that describe it to readers and change nothing else."""

STORE = "study.sqlite"  # in the study's folder
ROWS = ("train", "validation", "test", "corrupted")  # that a score of an ensemble may be on

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
        Settings with laws, and the number of runs at settings drawn from them at each combination of the grid.
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
    compare : str
        The setting whose values are compared in pairs of runs; methods with their options by default.
    reference : value, optional
        What the others are compared with; defaults to the plain optimizer, or to the first value.
    admission : sequence of Rule
        Bounds that a run has to satisfy to count.
    show, engine : Show, EngineSettings
        Pictures for the report, and where cells are computed.
    select : Select, optional
        A second stage: the best configurations on validation rows, trained again.
    table : sequence of TableSpec
        Tables of results.
    budgets, budget : mapping, str
        Changes of the file by name, such as a smaller grid, and the name of the one that applies; empty for none.
    out : str
        The study's folder; defaults to studies/NAME. A budget has a folder of its own in it.
    title, question, notes : str
        Texts for readers of the report: a heading, the question that the study answers, and anything else.
    file : str, optional
        The file that the study was read from.
    part : Part, optional
        The part of the cells that this process has; all by default.
    weights : mapping of str to str, optional
        For a report, digests of initial weights by `init`, as records have them: the files need not be here.

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
    compare: str = "method"
    reference: Any = None
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
    part: Part | None = None
    weights: Mapping[str, str] | None = None

    @cached_property
    def planned(self) -> list[Any]:
        """The cells of the file, which `cells` of the module `cell` fills."""
        return []

    @property
    def root(self) -> Path:
        """The folder of the whole study, with the runs of all its parts."""
        return Path(self.out or Path("studies") / self.name) / self.budget

    @property
    def folder(self) -> Path:
        """The study's folder; that of a part has the part's store alone."""
        return self.root / self.part.folder if self.part is not None else self.root

    @property
    def store(self) -> Path:
        """The SQLite file with the study's records."""
        return self.folder / STORE

    @property
    def ood_targets(self) -> list[str]:
        """The targets on test sets under another distribution."""
        return [f"{name}_error" for name in self.ood]

    def run_folder(self, key: str) -> str:
        """The folder of a cell's run."""
        return str(self.root / "runs" / key)

    @classmethod
    def of(cls, content: Mapping[str, Any], name: str, budget: str | None = None) -> Study:
        """Make a study from the content of its file.

        Parameters
        ----------
        content : mapping
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
        for key in content:
            if key in types() and key not in KEYS:
                raise ValueError(
                    f"{key} is a setting of a run: write it under `base`, or under `grid` with a list of values"
                )
        content = {RENAMED.get(key, key): value for key, value in content.items()}
        content = mapping(content, "a study", "keys and values", KEYS)
        budgets = mapping(content.pop("budgets", None) or {}, "budgets", "changes of the study by name")
        if budget is not None:
            return replace(cls.of(with_budget(content, budgets, budget), name), budgets=budgets, budget=budget)
        for other in budgets:
            changed = with_budget(content, budgets, other)
            try:
                cls.of(changed, name)
            except ValueError as error:
                raise ValueError(f"budgets.{other}: {error}") from error
        values = {"base": {}, "ood": {}} | {key: value for key, value in content.items() if value is not None}
        _check_pool(values)
        values = {key: PARSERS[key](value) for key, value in values.items()}
        values.setdefault("targets", ("test_error", "gap", *(f"{shifted}_error" for shifted in values["ood"])))
        study = cls(name, **values, budgets=budgets)
        study._check()
        return study

    def _check(self) -> None:
        """Raise for targets that no run would have, and for names that are neither settings nor axes."""
        targets = [*TARGETS, *self.ood_targets]
        if not self.errors:  # a CSV file may have columns of any name
            for name in self.targets:
                if name not in targets:
                    raise ValueError(unknown("target", name, targets))
            for name in self.groups:
                if name.split(".")[0] not in types():
                    raise ValueError(f"groups: {unknown('setting', name, types())}")
        if not self.targets:
            raise ValueError("targets is empty: name what to predict, such as test_error")
        if self.random is None and self.grid.laws:
            raise ValueError(
                f"grid draws {self.grid.laws[0]} from a law: say how often, with `random: {{points: 20}}` beside it"
            )
        varied = {*self.grid.settings, *(self.random.space if self.random is not None else ())}
        for target, one in TARGETS.items():
            wanted = target in self.targets or (self.select is not None and self.select.by == target)
            if wanted and self.pool is None and one.needs and one.needs not in {*self.base, *varied}:
                raise ValueError(f"the target {target} needs {one.needs} in base: {one.about}")
        check_settings([self.compare], [], "compare")
        axes = [*self.grid.axes, *self.groups, *(self.select.runs.axes if self.select is not None else ())]
        if self.select is not None:
            check_settings(self.select.per, axes, "select.per")
            if self.pool is not None:
                raise ValueError("select trains the best configurations again, and a pool is trained: leave it out")
        for spec in self.table:
            others = OF_TAU if spec.is_tau else (VALUE, EPOCH)
            check_settings([*spec.rows, *spec.columns, *spec.where], [*axes, *others], f"table {spec.name}")
            check_settings([spec.target] if spec.target else [], [], f"table {spec.name}")


RENAMED = {"standardise": "normalise"}  # earlier names of keys, which still work
KEYS = tuple(f.name for f in fields(Study) if f.name not in ("name", "file", "budget", "part", "weights"))
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
    if "pool" in values:
        if "grid" in values or "random" in values:
            raise ValueError("a study has a pool of checkpoints, or a grid or random draws of runs to train: not both")
        if "measure_every" in values:
            raise ValueError("measure_every measures runs while they train, and a pool is trained: leave it out")
    elif "errors" in values:
        raise ValueError("errors is the CSV file of a pool of checkpoints: there is no `pool`")
    elif "normalise" in values:
        raise ValueError("normalise is for a pool of checkpoints: there is no `pool`. Runs record their own")


def _base(value: Any) -> dict[str, Any]:
    base = mapping(value, "base", "settings of a run, as in {data: digits, lr: 0.1}")
    for key in base:
        if key in KEYS and key not in types():
            raise ValueError(f"base.{key}: {key} is a key of the study: move it out of `base`")
    return {"threads": 1} | settings(base, "base")


def _number(key: str, kind: type, least: int, value: Any) -> Any:
    if not fits(value, kind) or not value >= least:
        raise ValueError(f"{key} takes {words(kind)}, {least} or more, not {value!r}")
    return value


def measures_in(value: Any) -> tuple[str, ...]:
    """The canonical names of measures, from a list of names or a mapping of names to radii; grids are expanded.

    The data options that a study's measures have anyway are left out, so that equal requests have one name.
    """
    if isinstance(value, Mapping):
        listed = list(dict.fromkeys(name for base, radii in value.items() for name in _at_radii(str(base), radii)))
    else:
        listed = [*names(value, "measures", "names, as in `measures: [lambda_max, trace]`")]
    if all(MeasureName.of(name).is_plain for name in listed):
        return tuple(listed)
    from ..measures.registry import canonical_names  # imports torch, which plain names do not need
    from ..training.evaluate import M

    of_models, scores = split_measures(listed)
    return (*canonical_names(of_models, {"rows": "train", "m": str(M), "precision": "float32"}), *scores)


def _at_radii(base: str, radii: Any) -> list[str]:
    listed = radii if isinstance(radii, list) else [radii]
    if not all(r is None or fits(r, float | str) for r in listed):
        raise ValueError(
            f"measures.{base} takes a list of radii, a paper's grid, or null for the measure's own, not {radii!r}"
        )
    name = MeasureName.of(base)
    return [str(name if r is None else replace(name, radius=canonical_number(r) or str(r))) for r in listed]


def split_measures(measures: Sequence[str]) -> tuple[list[str], list[str]]:
    """Measures of a model, and scores of an ensemble such as `der` or `der[rows=corrupted]`."""
    from ..ensembles.scores import SCORES  # imports torch

    scores = [name for name in measures if MeasureName.of(name).base in SCORES]
    for name in scores:
        one = MeasureName.of(name)
        if one.radius or one.options.keys() - {"rows"} or one.options.get("rows", "test") not in ROWS:
            raise ValueError(f"measures: {name} is a score of ensembles, which takes rows only: {', '.join(ROWS)}")
    return [name for name in measures if name not in scores], scores


def _normalise(value: Any) -> str:
    """`normalise` as text, which `declared` reads: a mapping of mean and std becomes MEANS/STDS."""
    if isinstance(value, Mapping) and set(value) == {"mean", "std"}:
        columns = [v if isinstance(v, list) else [v] for v in (value["mean"], value["std"])]
        if all(fits(column, list[float]) for column in columns):
            value = "/".join(",".join(map(repr, column)) for column in columns)
    if not isinstance(value, str):
        raise ValueError(f"normalise takes {CHOICES}, not {value!r}")
    declared(value)
    return value


def _ood(value: Any) -> dict[str, str]:
    """Test sets by name; NAME_error must not be one of the other targets."""
    sets = mapping(value, "ood", "test sets by name, as in {imagenet-r: folder:PATH}")
    for name, place in sets.items():
        if not isinstance(place, str) or not split_name(place)[0]:
            raise ValueError(f"ood.{name} takes folder:PATH, folder:PATH@SIZE or npz:PATH, not {place!r}")
        if not re.fullmatch(r"[\w.+-]+", name) or f"{name}_error" in TARGETS:
            raise ValueError(f"ood: a test set cannot be called {name!r}: take letters, digits, - and _")
    return sets


PARSERS: Mapping[str, Callable[[Any], Any]] = {
    **{key: partial(_text, key) for key in (*TEXTS, "pool", "errors", "out")},
    "base": _base,
    "grid": lambda value: Grid.of(value, "grid"),
    "random": lambda value: Draws.of(value, "random"),
    "normalise": _normalise,
    "ood": _ood,
    "tolerance": partial(_number, "tolerance", float, 0),
    "measures": measures_in,
    "measure_every": partial(_number, "measure_every", int, 1),
    "targets": lambda value: names(value, "targets", "names, as in `targets: [test_error, gap]`"),
    "groups": lambda value: names(value, "groups", "names, as in `groups: [lr]`"),
    "compare": partial(_text, "compare"),
    "reference": lambda value: value,
    "admission": lambda rules: tuple(map(Rule.of, rules if isinstance(rules, list) else [rules])),
    "show": Show.of,
    "engine": EngineSettings.of,
    "select": Select.of,
    "table": tables,
}
"""How each key of a study's file is read."""
