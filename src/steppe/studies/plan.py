"""A study as one value, without torch: which runs, what is measured, and the targets it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Literal, get_args

from .._util.names import unknown
from .._util.untrusted import from_yaml
from .grid import Draws, Grid, settings, types
from .measured import measures_in, names_in, normalise_in, ood_in
from .show import Show

TARGETS = {
    "test_error": "share of wrong answers on test rows",
    "test_loss": "mean loss on test rows",
    "gap": "test error minus training error",
    "loss_gap": "test loss minus training loss",
    "corrupted_error": "share of wrong answers on corrupted test rows; needs `corruptions` in base",
    "validation_error": "share of wrong answers on validation rows; needs `validation` in base",
    "train_error": "share of wrong answers on training rows, with the final weights and without augmentation",
    "train_loss": "mean loss on training rows, likewise",
}
"""Numbers of a trained run that a study can predict."""

TEXTS = ("title", "question", "notes")
"""Keys of a study that describe it to readers and change nothing else."""

STORE = "study.sqlite"  # in the study's folder
COMPARISONS = {"<=": le, "<": lt, ">=": ge, ">": gt}
EngineName = Literal["local", "serial", "ray"]
REMOVED = ("stacked",)  # studies that name it still open; it computes nothing any more

# A modern look, section 4: "worst-case l_inf adaptive sharpness with low m", with and without normalised logits
USUAL = ("adaptive_worst_linf", "adaptive_worst_linf_normalised", "lambda_max", "trace")


@dataclass(frozen=True)
class Rule:
    """A bound on a target or a measure; only runs within it count."""

    name: str
    comparison: str
    bound: float

    @classmethod
    def of(cls, text: Any, place: str = "admission") -> Rule:
        """Parse `train_error <= 0.01`."""
        match = re.fullmatch(r"\s*(\S+?)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*", str(text))
        try:
            if match:
                return cls(match[1], match[2], float(match[3]))
        except ValueError:  # such as 1.2.3
            pass
        raise ValueError(f"{place} takes rules such as `train_error <= 0.01`, not {text!r}")

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether a run with these numbers is within the bound; False if the number is missing."""
        value = values.get(self.name)
        return value is not None and bool(COMPARISONS[self.comparison](value, self.bound))

    def __str__(self) -> str:
        return f"{self.name} {self.comparison} {self.bound:g}"


@dataclass(frozen=True)
class EngineSettings:
    """Where and how cells are computed. Nothing here changes a number.

    Parameters
    ----------
    name : {"local", "serial", "ray"}
        Local processes, one process for debugging, or a Ray cluster.
    workers : int, optional
        Cells at a time; defaults to the number of cores, or of GPUs.
    per_gpu : int
        Cells at a time per GPU.
    retries : int
        Retries of a cell whose worker was lost, before it is recorded as failed.
    address : str, optional
        Address of a Ray cluster; by default Ray starts one on this machine.

    """

    name: EngineName = "local"
    workers: int | None = None
    per_gpu: int = 1
    retries: int = 2
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in (*get_args(EngineName), *REMOVED):
            raise ValueError(unknown("engine", str(self.name), get_args(EngineName)))
        for name, least in (("workers", 1), ("per_gpu", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name} of an engine is a whole number, {least} or more, not {value!r}")


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
    out : str
        The study's folder; defaults to studies/NAME.
    title, question, notes : str
        Texts for readers of the report: a heading, the question that the study answers, and anything else.
    file : str, optional
        The file that the study was read from.

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
    out: str = ""
    title: str = ""
    question: str = ""
    notes: str = ""
    file: str | None = None

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return Path(self.out or Path("studies") / self.name)

    @property
    def store(self) -> Path:
        """The SQLite file with the study's records."""
        return self.folder / STORE

    def run_folder(self, key: str) -> str:
        """The folder of a cell's run."""
        return str(self.folder / "runs" / key)

    @classmethod
    def of(cls, given: Mapping[str, Any], name: str) -> Study:
        """Make a study from the content of its file.

        Parameters
        ----------
        given : mapping
            Keys and values as in docs/studies.md.
        name : str
            The study's name.

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
        _known_keys(given, KEYS, "key of a study")
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
        values["engine"] = _engine(values.get("engine", {}))
        study = cls(name, **values)
        study._check_targets()
        return study

    def _check_targets(self) -> None:
        """Raise for a target that no run would have."""
        names = {*self.base, *(k for axis in self.grid.axes.values() for value in axis for k in value)}
        for target, needed in (("corrupted_error", "corruptions"), ("validation_error", "validation")):
            if target in self.targets and self.pool is None and needed not in names:
                raise ValueError(f"the target {target} needs {needed} in base: {TARGETS[target]}")


RENAMED = {"standardise": "normalise"}  # earlier names of keys, which still work
KEYS = tuple(f.name for f in fields(Study) if f.name not in ("name", "file"))
"""Keys of a study's file."""


def digits() -> Study:
    """The study that comes with steppe, digits.yaml."""
    file = files(__package__) / "digits.yaml"
    return Study.of(from_yaml(file.read_text(encoding="utf-8"), str(file)), "digits")


def _known_keys(values: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(unknown(what, str(key), known))


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


def _engine(value: Any) -> EngineSettings:
    if isinstance(value, str):
        return EngineSettings(name=value)  # type: ignore[arg-type]  # checked there
    if not isinstance(value, Mapping):
        raise ValueError(f"engine takes a name or a mapping, as in {{name: local, workers: 4}}, not {value!r}")
    _known_keys(value, [f.name for f in fields(EngineSettings)], "key of engine")
    return EngineSettings(**value)
