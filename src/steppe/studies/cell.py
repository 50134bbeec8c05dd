"""The cells of a study: runs or checkpoints, each with the key of its records; tasks of workers and their outcomes."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from glob import glob
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from .._util.checkpoints import SUFFIXES
from .._util.digests import digest
from .._util.names import unknown
from .._util.numbers import read_plain
from ..data.registry import CHOICES
from ..ensembles.strategies import Ensemble
from ..training.config import FREE, Config
from .grid import (
    RESERVED,
    STRATEGY,
    complete,
    config_of,
    defaults,
    differing,
    plain,
    resolved,
    split,
    value_at,
)
from .plan import TARGETS, Study
from .points import Point, points
from .statistics.design import OWN

NOT_STORED = (*FREE, *RESERVED)
CHECKPOINT = "checkpoint"  # the column of a pool's CSV file with the file's name or path
ABSENT = "absent"  # stands for the digest of weights that are not here
Stage = Literal["", "sweep", "final"]  # of a study with `select`
CORRUPTED_ROWS = "corrupted rows of "  # and a data set: the entry of `Outcome.versions` that says where they come from
WEIGHTS_OF = "weights of "  # and a file of `init`: the entry of `Outcome.versions` with its digest


class Disagreement(ValueError):
    """A computed error differs from the user's table, which puts the whole study in doubt."""


@dataclass(frozen=True)
class Cell:
    """One run or ensemble of a study, or one checkpoint of its pool.

    `key` is a hash of everything that its numbers follow from. For a pool, `checkpoint` is a file of weights or a run's
    folder, `known` are targets from the user's table, and `tolerance` bounds their difference from computed ones.
    `labels` are names in tables of the values of some axes; `stage` is that of a study with `select`. `contender` is
    what methods are compared by: a method's name, or its label, with the options in which those of one name differ.
    `predicts` says whether the run is measured, and enters correlations. `made` are the parts of its configuration, if
    they are known: `parts` makes them otherwise.
    """

    key: str
    name: str
    config: Mapping[str, Any]
    groups: Mapping[str, Any]
    checkpoint: str | None = None
    known: Mapping[str, float] = field(default_factory=dict)
    normalise: str | None = None
    tolerance: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    stage: Stage = ""
    contender: str = ""
    predicts: bool = True
    made: tuple[Config, Ensemble | None] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def parts(self) -> tuple[Config, Ensemble | None]:
        """The configuration of the run or of the members, and the settings of the ensemble if it is one."""
        return self.made or split(self.config)

    def value(self, path: str) -> Any:
        """The label of an axis of the grid, or a setting; None if there is none."""
        return self.labels[path] if path in self.labels else value_at({**self.groups, **self.config}, path)

    def check_known(self, computed: Mapping[str, float]) -> None:
        """Raise `Disagreement` if a computed target differs from the table's."""
        for name, listed in self.known.items():
            if name in computed and not abs(computed[name] - listed) <= self.tolerance:
                raise Disagreement(
                    f"{name} of {self.checkpoint} is {computed[name]:g} here and {listed:g} in the table of errors, "
                    f"with a tolerance of {self.tolerance:g}: check normalise, data, model; errors are shares, not %"
                )


@dataclass(frozen=True)
class Task:
    """A worker's task: a cell, its run's folder, and the missing measures, targets and pictures.

    `pictures` are names of notes; `members` are the tasks of an ensemble among them. `ood` are test sets by name. A run
    measures `along` every `measure_every` epochs. With `rung`, an epoch and a share, it stops after that epoch if more
    than this share of the validation rows is wrong.
    """

    cell: Cell
    folder: str
    measures: Sequence[str]
    targets: Sequence[str] = ()
    pictures: Sequence[str] = ()
    members: Sequence[Task] = ()
    ood: Mapping[str, str] = field(default_factory=dict)
    along: Sequence[str] = ()
    measure_every: int | None = None
    rung: tuple[int, float] | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a task in plain values, so that any engine can transport it.

    `failures` are the errors of measures without a value, `curves` the records of the epochs, `pictures` notes by name,
    `correct` one bit per row by kind of rows (test, validation), as `_util.digests.unpacked_bits` reads them.
    `ends` stops the whole study; `transient` means that a retry may succeed (a lost worker, a full disk).
    """

    key: str
    state: Literal["done", "failed", "stopped"]
    targets: Mapping[str, float] = field(default_factory=dict)
    target_errors: Mapping[str, float] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, float] = field(default_factory=dict)
    curves: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    ends: bool = False
    transient: bool = False
    pictures: Mapping[str, Any] = field(default_factory=dict)
    correct: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def lost(cls, task: Task, why: str) -> Outcome:
        """The outcome of a task whose worker was lost."""
        return cls(task.cell.key, "failed", error=why, transient=True)


def cells(study: Study) -> list[Cell]:
    """All cells of a study, in the order of its file; cells with equal configurations are one.

    The final runs of a study with `select` follow from its results: `selection.planned_cells` has them.
    """
    found = _pool(study) if study.pool is not None else study.planned
    if study.pool is None and not found:  # made once: several parts of a command ask for them
        runs = list(points(study.grid, study.random, study.base, contender_settings(study, study.compare)))
        stage: Stage = "sweep" if study.select is not None else ""
        found.extend(cells_of(study, runs, _contenders(study, runs), stage))
    return [cell for cell in found if study.part is None or cell.key in study.part.keys]


def _contenders(study: Study, runs: Sequence[Point]) -> list[str]:
    """The name of each run's contender: settings that are drawn for each run are in none."""
    own = contender_settings(study, "method")
    axes = [name for name, axis in study.grid.axes.items() if any({"method", STRATEGY} & v.keys() for v in axis)]
    called: list[str] = []
    values: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        labels = [run.labels[axis] for axis in axes if axis in run.labels]
        has = {**study.base, **run.given}
        called.append(
            " ".join(labels) or str(has.get(STRATEGY) or has.get("method") or defaults(ensemble=False)["method"])
        )
        for name, value in run.given.items():
            values.setdefault((called[-1], name), set()).add(repr(value))
    names = [name for name in study.grid.settings if name in own and name not in ("method", STRATEGY)]
    return [
        " ".join([one, *(_word(n, run.given[n]) for n in names if n in run.given and len(values[one, n]) > 1)])
        for one, run in zip(called, runs, strict=True)
    ]


def contender_settings(study: Study, compare: str) -> set[str]:
    """What makes a contender of a comparison: a method, its options, and what its entries of an axis set beside it.

    Where another setting is compared, that is the setting, and what entries set beside it.
    """
    of_methods = compare == "method"
    made_by = {"method", STRATEGY} if of_methods else {compare}
    axes = {name: axis for name, axis in study.grid.axes.items() if any(made_by & value.keys() for value in axis)}
    beside = {name for axis in axes.values() for value in axis for name in value}
    options = (name for name in study.grid.settings if name.partition(".")[0] in OWN)
    return {*made_by, *axes, *beside, *(OWN if of_methods else ()), *(options if of_methods else ())}


def cells_of(study: Study, runs: Iterable[Point], contenders: Iterable[str], stage: Stage) -> list[Cell]:
    """The cells with these settings, labels and contenders."""
    found: dict[str, tuple[dict[str, Any], tuple[Config, Ensemble | None], Mapping[str, str], str]] = {}
    for run, contender in zip(runs, contenders, strict=True):
        config, made = complete(resolved({**study.base, **run.settings}), f"the run with {run.settings}")
        found.setdefault(key_of(config, study.weights), (config, made, run.labels, contender))
    names = _names(varied_settings(study), [config for config, *_ in found.values()])
    before = "final " if stage == "final" else ""
    predicts = study.select is None or study.select.predict in ("all", stage)
    return [
        Cell(
            key,
            before + name,
            config,
            groups_of(study, config),
            labels=labels,
            stage=stage,
            contender=contender,
            predicts=predicts,
            made=made,
        )
        for (key, (config, made, labels, contender)), name in zip(found.items(), names, strict=True)
    ]


def varied_settings(study: Study) -> list[str]:
    """The settings that a study's file gives several values, those of one axis side by side."""
    names = [*study.grid.settings, *(study.select.runs.settings if study.select is not None else ())]
    return list(dict.fromkeys([*names, *(study.random.space if study.random is not None else ()), "seed"]))


def _names(settings: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that differ, per run; those of one axis of the grid side by side."""

    def named(paths: Sequence[str]) -> list[str]:
        return [
            " ".join(filter(None, (_word(p, value_at(c, p)) for p in paths))) or f"seed={c['seed']}" for c in configs
        ]

    varied = differing(settings, configs)
    # options are long, and often there is one set of them per method; seeds are long where every point has its own
    for long in ({"method_options", "seed"}, {"method_options"}, {"seed"}):
        short = named([n for n in varied if n.partition(".")[0] not in long])
        if len(set(short)) == len(short):
            return short
    return named(varied)


def _word(name: str, value: Any) -> str:
    if value in (None, {}, []):
        return ""
    if name in ("method", STRATEGY):
        return str(value)
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return f"{name.rpartition('.')[2]}={text}"


def as_stored(cell: Cell) -> Cell:
    """The cell without settings that change no number."""
    return replace(cell, config={k: v for k, v in cell.config.items() if k not in NOT_STORED})


def groups_of(study: Study, config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the study's groups in a configuration."""
    return {path: value_at(config, path) for path in study.groups}


def key_of(config: Mapping[str, Any], weights: Mapping[str, str] | None = None) -> str:
    """A hash of the settings that differ from their defaults: a setting that is added later changes no key.

    Initial weights enter by the digest of their file. With `weights`, digests of files that need not be here, a missing
    file that is not among them has a placeholder: such keys can be counted, and no record has them.
    """
    own = own_settings(config)
    if "init" in own:
        init = own["init"]
        if weights is None or (init not in weights and weights_file(init).is_file()):
            own["init"] = fingerprint(init)
        else:
            own["init"] = weights.get(init, ABSENT)
    return short_hash(own)


def own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change numbers and differ from their defaults."""
    usual = defaults(ensemble=STRATEGY in config)
    return {k: v for k, v in config.items() if k not in NOT_STORED and v != usual.get(k)}


def short_hash(of: Mapping[str, Any]) -> str:
    """A short hash of a mapping of plain values."""
    return blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=8).hexdigest()


def _pool(study: Study) -> list[Cell]:
    """The checkpoints and run folders that match the study's pattern, in the order of their names."""
    paths = sorted(Path(p) for p in glob(str(study.pool), recursive=True))
    paths = [p for p in paths if (p.suffix in SUFFIXES and p.is_file()) or (p / "run.yaml").exists()]
    if not paths:
        kinds = ", ".join(SUFFIXES)
        raise FileNotFoundError(f"pool: there is no checkpoint ({kinds}) and no run's folder at {study.pool!r}")
    weights = [p for p in paths if p.is_file()]
    if weights and ("model" not in study.base or "data" not in study.base):
        raise ValueError(f"pool: {weights[0]} does not name its data and model: give data and model in base")
    if weights and study.normalise is None:
        raise ValueError(
            f"pool: {weights[0]} does not record how its inputs were normalised in training: give normalise, "
            f"which is {CHOICES}"
        )
    rows = _table_of_errors(Path(study.errors), paths) if study.errors else {}
    short = {path: path.stem if path.is_file() else path.name for path in paths}
    count = Counter(short.values())  # files of many models may all be called pytorch_model.bin
    names = {path: name if count[name] == 1 else f"{path.parent.name}/{name}" for path, name in short.items()}
    return [_pool_cell(study, path, names[path], rows.get(path, {})) for path in paths]


def _pool_cell(study: Study, path: Path, name: str, row: Mapping[str, Any]) -> Cell:
    if path.is_dir():
        from ..training.folder import open_run  # imports torch

        config = plain(open_run(path).config) | {"out": None, "measures": [], "measure_every": None, "loggers": []}
    else:
        config = plain(config_of(study.base, "base"))
    targets = {*study.targets, *TARGETS, *study.ood_targets}
    known = {k: float(v) for k, v in row.items() if k in targets and isinstance(v, (int, float))}
    wrong = [k for k in study.targets if k in row and k not in known]
    if wrong:
        raise ValueError(f"{study.errors}: {wrong[0]} of {path.name} is {row[wrong[0]]!r}, and has to be a number")
    columns = {k: v for k, v in row.items() if k not in known and k != CHECKPOINT}
    normalise = study.normalise if path.is_file() else None
    identity = {"config": config, "weights": fingerprint(path)}
    root = {name: value for name, value in study.base.items() if name == "data_root"}  # runs may be copies
    return Cell(
        short_hash(identity if normalise is None else identity | {"standardise": normalise}),  # the key's earlier name
        name,
        config | root,
        groups_of(study, {**config, **columns}),
        str(path),
        known,
        normalise,
        study.tolerance,
    )


def weights_file(place: Path | str) -> Path:
    """The file with the weights of a checkpoint or of a run's folder."""
    path = Path(place)
    return path / "checkpoint.safetensors" if path.is_dir() else path


def fingerprint(place: Path | str) -> str:
    """The digest of a file of weights: of all of it, because fine-tuning may change a few layers in its middle."""
    file = weights_file(place)
    if not file.is_file():
        raise FileNotFoundError(f"there are no weights at {file}: put them there, or name another file in the study")
    stat = file.stat()
    return _digest(file.absolute(), stat.st_size, stat.st_mtime_ns)


@cache
def _digest(file: Path, size: int, changed: int) -> str:
    """Read once per process, though every run of a study may start from one file."""
    with file.open("rb") as opened:
        return digest(iter(lambda: opened.read(1 << 20), b""))


def _table_of_errors(file: Path, paths: list[Path]) -> dict[Path, dict[str, Any]]:
    """The row of each checkpoint in a CSV file."""
    if not file.is_file():
        raise FileNotFoundError(f"errors: there is no file {str(file)!r}")
    with file.open(newline="", encoding="utf-8-sig") as opened:
        reader = csv.DictReader(opened)
        columns = reader.fieldnames or []
        if CHECKPOINT not in columns:
            raise ValueError(f"{file}: {unknown('column', CHECKPOINT, columns)} It names the file of each row")
        lines = list(reader)
    names: dict[str, Path] = {}
    # a.pt and a.safetensors need their endings, a/model.pt and b/model.pt their folders
    spellings = (
        lambda p: p.parent.name,
        lambda p: p.stem,
        lambda p: p.name,
        lambda p: f"{p.parent.name}/{p.name}",
        str,
    )
    for spelling in spellings:
        count = Counter(map(spelling, paths))
        names |= {spelling(p): p for p in paths if count[spelling(p)] == 1}
    rows: dict[Path, dict[str, Any]] = {}
    for number, row in enumerate(lines, start=2):
        if None in row or None in row.values():
            raise ValueError(f"{file}, line {number}: it has another number of cells than the first line")
        path = names.get(row[CHECKPOINT])
        if path is None:
            raise ValueError(f"{file}, line {number}: {unknown('checkpoint in the pool', row[CHECKPOINT], names)}")
        if path in rows:
            raise ValueError(f"{file}, line {number}: {row[CHECKPOINT]} is there twice")
        rows[path] = {k: read_plain(v) for k, v in row.items() if v != ""}
    missing = [p for p in paths if p not in rows]
    if missing:
        raise ValueError(f"{file} has no row for {missing[0]}: it needs one for every checkpoint of the pool")
    return rows
