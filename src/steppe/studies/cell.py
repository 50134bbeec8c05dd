"""The cells of a study: what each is, the key under which it is kept, and the task of computing it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from ..training.config import Config
from .plan import Study
from .settings import OURS, config_of, plain, settings

NOT_IN_KEYS = ("out", "data_root", "loggers", "checkpoint_every")  # where things lie and how often they are kept


class Disagreement(ValueError):
    """What a table says of a checkpoint is not what is found here: all that the study would say is in doubt."""


@dataclass(frozen=True)
class Cell:
    """One run of a study, or one checkpoint of its pool."""

    key: str  # of everything that its numbers follow from
    name: str  # for people
    config: Mapping[str, Any]
    groups: Mapping[str, Any]
    checkpoint: str | None = None  # a file of weights, or a run's folder, that was there before
    known: Mapping[str, float] = field(default_factory=dict)  # targets as a table of the user's has them
    standardise: str | None = None  # how the inputs of a file of weights were standardised in training
    tolerance: float = 0.0  # how far targets that are computed may be from the table's

    def refuse_disagreement(self, ours: Mapping[str, float]) -> None:
        """Raises if the table says something else than what was found here."""
        for name, said in self.known.items():
            if name in ours and not abs(ours[name] - said) <= self.tolerance:
                raise Disagreement(
                    f"the table of errors says that {name} of {self.checkpoint} is {said:g}, and here it is "
                    f"{ours[name]:g}: they differ by {abs(ours[name] - said):.4g}, more than the tolerance of "
                    f"{self.tolerance:g}. Look at standardise, data and model in the study's file, and at the units of "
                    "the table (shares, not per cent). A column under another name is not compared"
                )


@dataclass(frozen=True)
class Task:
    """What a worker is given: a cell, where its run lies, and which measures, targets and pictures are missing."""

    cell: Cell
    folder: str
    measures: Sequence[str]
    targets: Sequence[str] = ()
    pictures: Sequence[str] = ()  # by the names of their notes
    members: Sequence[Task] = ()  # of the ensemble that is among the pictures


@dataclass(frozen=True)
class Outcome:
    """What became of a cell; plain values, so that any engine can carry it."""

    key: str
    state: Literal["done", "failed", "stopped"]
    targets: Mapping[str, float] = field(default_factory=dict)
    target_errors: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)  # measures without a value, and why
    meta: Mapping[str, float] = field(default_factory=dict)
    curves: Sequence[Mapping[str, Any]] = ()  # records of the epochs
    versions: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    ends: bool = False  # the whole study
    transient: bool = False  # it may go well another time: a lost worker, a full disk
    pictures: Mapping[str, Any] = field(default_factory=dict)  # notes by name

    @classmethod
    def lost(cls, task: Task, why: str) -> Outcome:
        """A task whose worker is gone."""
        return cls(task.cell.key, "failed", error=why, transient=True)


def cells(study: Study) -> list[Cell]:
    """All cells of a study, in the order of its file; two with one configuration are one."""
    if study.pool is not None:
        from .pool import pooled

        return pooled(study)
    found: dict[str, dict[str, Any]] = {}
    for config in _configs(study):
        made = plain(config)
        found.setdefault(key_of(made), made)
    names = _names(study, list(found.values()))
    return [Cell(key, n, made, groups_of(study, made)) for (key, made), n in zip(found.items(), names, strict=True)]


def _configs(study: Study) -> Iterator[Config]:
    for draw in study.random if study.random is not None else [{}]:
        for point in study.grid:
            chosen = settings(point | draw, "grid")
            yield config_of({**study.base, **chosen}, f"the run with {chosen}")


def _names(study: Study, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is told of each run: the settings that differ, those of one axis of the grid side by side."""
    axes = [name for axis in study.grid.axes.values() for value in axis for name in value]
    drawn = study.random.space if study.random is not None else {}
    varied = [n for n in dict.fromkeys([*axes, *drawn]) if len({json.dumps(c[n], sort_keys=True) for c in configs}) > 1]

    def named(words: Sequence[str]) -> list[str]:
        said = (" ".join(_word(k, c[k]) for k in words if c[k] not in (None, {}, [])) for c in configs)
        return [name or f"seed={c['seed']}" for name, c in zip(said, configs, strict=True)]

    short = named([n for n in varied if n != "method_options"])  # long, and often one set of options a method
    return short if len(set(short)) == len(short) else named(varied)


def _word(name: str, value: Any) -> str:
    if name == "method":
        return str(value)
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return f"{name}={text}"


def kept(cell: Cell) -> Cell:
    """A cell as a store keeps it: without what its numbers do not follow from."""
    return replace(cell, config={k: v for k, v in cell.config.items() if k not in (*NOT_IN_KEYS, *OURS)})


def groups_of(study: Study, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell is compared within."""
    found = {}
    for path in study.groups:
        value: Any = config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        found[path] = value
    return found


def key_of(config: Mapping[str, Any]) -> str:
    """A hash of what is not as by default in a configuration: a setting that steppe learns later changes no key."""
    usual = asdict(Config())
    said = {k: v for k, v in config.items() if k not in (*NOT_IN_KEYS, *OURS) and v != usual.get(k)}
    return digest(said)


def digest(of: Mapping[str, Any]) -> str:
    """A short hash of a mapping of plain values."""
    return blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=8).hexdigest()
