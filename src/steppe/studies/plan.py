"""A study as one value without torch in it: which runs, what is measured of them, and what that is held against."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Literal, get_args

from .._util.names import unknown
from ..data.registry import declared
from .settings import settings, types
from .show import Show
from .space import Draws, Grid

TARGETS = {
    "test_error": "share of wrong answers on test rows",
    "test_loss": "mean loss on test rows",
    "gap": "test error less training error",
    "loss_gap": "test loss less training loss",
    "corrupted_error": "share of wrong answers on corrupted test rows; needs `corruptions` in base",
    "validation_error": "share of wrong answers on validation rows; needs `validation` in base",
    "train_error": "share of wrong answers on training rows, with the final weights and without augmentation",
    "train_loss": "mean loss on training rows, likewise",
}
"""What can be predicted of a trained run."""

STORE = "study.sqlite"  # in the study's folder
COMPARISONS = {"<=": le, "<": lt, ">=": ge, ">": gt}
EngineName = Literal["local", "serial", "ray"]
REMOVED = ("stacked",)  # files of studies that name it still open; it computes nothing any more

# A modern look, section 4: "worst-case l_inf adaptive sharpness with low m", with and without normalised logits
USUAL = ("adaptive_worst_linf", "adaptive_worst_linf_normalised", "lambda_max", "trace")


@dataclass(frozen=True)
class Rule:
    """A bound on a target or a measure that a run has to keep to count."""

    name: str
    comparison: str
    bound: float

    @classmethod
    def of(cls, text: Any, place: str = "admission") -> Rule:
        """What `train_error <= 0.01` says."""
        found = re.fullmatch(r"\s*(\S+?)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*", str(text))
        try:
            return cls(found[1], found[2], float(found[3])) if found else cls._refuse(text, place)
        except ValueError:
            return cls._refuse(text, place)

    @staticmethod
    def _refuse(text: Any, place: str) -> Rule:
        raise ValueError(f"{place} takes rules such as `train_error <= 0.01`, not {text!r}") from None

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether a run with these numbers keeps it; one without the number does not."""
        value = values.get(self.name)
        return value is not None and bool(COMPARISONS[self.comparison](value, self.bound))

    def __str__(self) -> str:
        return f"{self.name} {self.comparison} {self.bound:g}"


@dataclass(frozen=True)
class EngineSettings:
    """Where and how cells are computed; nothing in here changes a number."""

    name: EngineName = "local"
    """local processes, one process for debugging, or a Ray cluster"""
    workers: int | None = None
    """cells at a time; by default as many as there are cores, or GPUs"""
    per_gpu: int = 1
    """cells at a time on one GPU"""
    retries: int = 2
    """how often a cell is tried again whose worker was lost, before it is recorded as failed"""
    address: str | None = None
    """of a Ray cluster; by default Ray starts one on this machine"""

    def __post_init__(self) -> None:
        if self.name not in (*get_args(EngineName), *REMOVED):
            raise ValueError(unknown("engine", str(self.name), get_args(EngineName)))
        for name, least in (("workers", 1), ("per_gpu", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name} of an engine is a whole number, {least} or more, not {value!r}")


@dataclass(frozen=True)
class Study:
    """A base run with a grid or random draws around it, or a pool of checkpoints; measures, targets, groups, rules."""

    name: str
    base: Mapping[str, Any] = field(default_factory=dict)
    """settings of `steppe train` that all runs share"""
    grid: Grid = field(default_factory=Grid)
    """settings with lists of values, of which every combination is a run"""
    random: Draws | None = None
    """settings with ranges, of which n random draws are runs; with a grid, each draw at each point of it"""
    pool: str | None = None
    """existing checkpoints or folders of runs instead, as a pattern such as path/*.safetensors"""
    errors: str | None = None
    """a CSV file with the errors of the pool: a column `checkpoint`, targets, and anything else that is known"""
    standardise: str | None = None
    """how inputs of files in the pool were standardised in training, as in `steppe measure`; runs know their own"""
    tolerance: float = 0.005  # tables often have two decimals
    """how far what is computed of the pool may be from what `errors` says, before the study stops"""
    measures: Sequence[str] = USUAL
    """by name, at a radius as in worst_linf@0.002; or a mapping of names to lists of radii"""
    targets: Sequence[str] = ("test_error", "gap")
    """what sharpness is held against"""
    groups: Sequence[str] = ()
    """settings whose values make the groups for correlation within groups"""
    admission: Sequence[Rule] = ()
    """bounds that a run has to keep to count, such as train_error <= 0.01"""
    show: Show = field(default_factory=Show)
    """pictures of some runs: spectrum, landscape, ensembles"""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """where cells are computed"""
    out: str = ""
    """the folder of the study; by default studies/ and its name"""

    @property
    def folder(self) -> Path:
        return Path(self.out or Path("studies") / self.name)

    @property
    def store(self) -> Path:
        return self.folder / STORE

    def run_folder(self, key: str) -> str:
        """Where the run of a cell lies."""
        return str(self.folder / "runs" / key)

    @classmethod
    def of(cls, given: Mapping[str, Any], name: str) -> Study:
        """A study from what stands in its file; anything in it that is not known is refused."""
        known = [f.name for f in fields(cls) if f.name != "name"]
        for key in given:
            if key not in known:
                raise ValueError(unknown("key of a study", str(key), known))
        found: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        for key in ("pool", "errors", "out", "standardise"):
            if not isinstance(found.get(key, ""), str):
                raise ValueError(f"{key} takes a text, not {found[key]!r}")
        if "pool" in found and ("grid" in found or "random" in found):
            raise ValueError("a study has a pool of checkpoints, or a grid or random draws of runs to train: not both")
        if ("errors" in found) and "pool" not in found:
            raise ValueError("errors is the CSV file of a pool of checkpoints: there is no `pool`")
        if "standardise" in found:
            declared(found["standardise"])
            if "pool" not in found:
                raise ValueError(
                    "standardise is of a pool of checkpoints: there is no `pool`. Runs standardise themselves"
                )
        tolerance = found.get("tolerance", 0)
        if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not tolerance >= 0:
            raise ValueError(f"tolerance takes a number, 0 or more, not {tolerance!r}")
        base = found.get("base", {})
        if not isinstance(base, Mapping):
            raise ValueError(f"base takes settings of a run, not {base!r}")
        found["base"] = {"threads": 1} | settings(base, "base")
        if "grid" in found:
            found["grid"] = Grid.of(found["grid"], "grid")
        if "random" in found:
            found["random"] = Draws.of(found["random"], "random")
        found["measures"] = _measures(found.get("measures", list(USUAL)))
        found["targets"] = _targets(found.get("targets", ["test_error", "gap"]), own=bool(found.get("errors")))
        found["groups"] = _groups(found.get("groups", []), own=bool(found.get("errors")))
        rules = found.get("admission", [])
        found["admission"] = tuple(Rule.of(rule) for rule in (rules if isinstance(rules, list) else [rules]))
        found["show"] = Show.of(found.get("show", []))
        found["engine"] = _engine(found.get("engine", {}))
        made = cls(name, **found)
        made._refuse_missing()
        return made

    def _refuse_missing(self) -> None:
        """Targets that no run would have."""
        axes = {*self.base, *(k for axis in self.grid.axes.values() for value in axis for k in value)}
        for target, needed in (("corrupted_error", "corruptions"), ("validation_error", "validation")):
            if target in self.targets and self.pool is None and needed not in axes:
                raise ValueError(f"the target {target} needs {needed} in base: {TARGETS[target]}")


def _names(given: Any, key: str) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{key} takes a list of names, not {given!r}")
    return list(dict.fromkeys(names))


def _measures(given: Any) -> tuple[str, ...]:
    if not isinstance(given, Mapping):
        return tuple(_names(given, "measures"))
    found: list[str] = []
    for name, radii in given.items():
        listed = radii if isinstance(radii, list) else [radii]
        if not all(r is None or (isinstance(r, (int, float)) and not isinstance(r, bool)) for r in listed):
            raise ValueError(f"measures.{name} takes a list of radii, or null for the measure's own, not {radii!r}")
        found += [str(name) if r is None else f"{name}@{r:g}" for r in listed]
    return tuple(dict.fromkeys(found))


def _targets(given: Any, own: bool) -> tuple[str, ...]:
    names = _names(given, "targets")
    for name in names:
        if name not in TARGETS and not own:  # a CSV file may have columns of any name
            raise ValueError(unknown("target", name, TARGETS))
    if not names:
        raise ValueError("targets is empty: say what sharpness is held against, such as test_error")
    return tuple(names)


def _groups(given: Any, own: bool) -> tuple[str, ...]:
    names = _names(given, "groups")
    for name in names:
        if name.split(".")[0] not in types() and not own:
            raise ValueError(f"groups: {unknown('setting', name, types())}")
    return tuple(names)


def _engine(given: Any) -> EngineSettings:
    if isinstance(given, str):
        return EngineSettings(name=given)  # type: ignore[arg-type]  # checked there
    if not isinstance(given, Mapping):
        raise ValueError(f"engine takes a name or a mapping, not {given!r}")
    known = [f.name for f in fields(EngineSettings)]
    for key in given:
        if key not in known:
            raise ValueError(unknown("key of engine", str(key), known))
    return EngineSettings(**given)
