"""The tables of a study: a mean over runs with its standard error in every cell, or a correlation with its interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np

from .._util.measure_names import MeasureName
from .._util.numbers import compared
from ..core.fields import fits
from .cell import Cell
from .grid import differing, shown
from .plan import Study
from .pool import Pool
from .protocol import EPOCH, SCALES, VALUE, TableSpec
from .result import findings_of
from .selection import tuned_settings
from .statistics.design import ALL_SEEDS, SEEDS
from .statistics.differences import paired_spread, smallest_step
from .statistics.findings import Findings
from .statistics.predictions import GroupTau
from .statistics.spread import CONFIDENCE, Part, Spread
from .table import Run, Table

Curves = Callable[[str], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Entry:
    """One cell of a table. Two cells are equal if all fields are equal; nan equals nan.

    Attributes
    ----------
    row, column : str
        Labels.
    value, error : float
        The mean over runs and its standard error (nan for one run), or tau without one.
    n : int
        Runs.
    low, high : float
        The 95 % interval; nan without one.
    difference, difference_low, difference_high : float
        Mean difference to the reference row, paired by seed, and its 95 % interval; `pairs` seeds.

    """

    row: str
    column: str
    value: float
    error: float
    n: int
    low: float
    high: float
    difference: float = nan
    difference_low: float = nan
    difference_high: float = nan
    pairs: int = 0

    def __eq__(self, other: object) -> bool:
        return compared(self) == compared(other) if isinstance(other, Entry) else NotImplemented

    def __hash__(self) -> int:
        return hash(compared(self))


@dataclass(frozen=True)
class Summary:
    """A table of a study: labels of rows and columns, the cells that have a number, and remarks."""

    spec: TableSpec
    rows: Sequence[str]
    columns: Sequence[str]
    entries: Sequence[Entry]
    notes: Sequence[str] = ()
    points: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)  # of a scatter, by row

    def entry(self, row: str, column: str) -> Entry | None:
        """The cell of a row and a column, if it has a number."""
        return next((e for e in self.entries if (e.row, e.column) == (row, column)), None)


def summaries(
    study: Study, planned: Sequence[Cell], table: Table, curves: Curves, findings: Findings | None = None
) -> list[Summary]:
    """All tables of a study from the runs that its store holds.

    `curves` returns the records of a cell's epochs by its key. Tables of correlations without a condition show the
    study's `findings`, if they are given.
    """
    return [_summary(spec, study, planned, table, curves, findings) for spec in study.table]


def labels_of(spec: TableSpec, planned: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """The labels that settings of the planned cells give to rows or columns, in the order of the plan."""
    return list(dict.fromkeys(label_of(spec, cell, names) for cell in planned if _enters(spec, cell)))


def label_of(spec: TableSpec, cell: Cell, names: Sequence[str], value: str = "") -> str:
    """The label of a cell's row or column."""
    parts = [shown(value if name == VALUE else cell.value(name)) for name in names]
    text = " ".join(part for part in parts if part) or value
    return spec.labels.get(text, text)


def _summary(
    spec: TableSpec, study: Study, planned: Sequence[Cell], table: Table, curves: Curves, findings: Findings | None
) -> Summary:
    entering = [cell for cell in planned if _enters(spec, cell)]
    pool = Pool.of(study, entering, table)
    if spec.is_tau:
        targets = study.targets
        if spec.target:
            targets, findings = [spec.target], None
            of_runs = [replace(r, targets={spec.target: number_of(r, spec.target)}) for r in pool.counted.runs]
            pool = replace(pool, counted=Table(of_runs))
        if findings is None or spec.where or spec.runs != "final":
            pool = replace(pool, related=pool.counted, compared=pool.counted)
            findings = findings_of(pool, study, targets, tuned=tuned_settings(study))
        return _taus(spec, study.measures, targets, findings)
    runs = {run.key: run for run in pool.counted.runs}
    full = {name: full_name(name, study.measures) for name in (*spec.value, spec.x)}
    numbers: dict[tuple[str, str], list[tuple[Cell, float]]] = {}
    points: dict[str, list[tuple[float, float]]] = {}
    missing = set()
    for cell in entering:
        if cell.key not in runs:
            continue
        for name in spec.value:
            scales = spec.scale.get(name, spec.scale.get("", ()))
            row = label_of(spec, cell, spec.rows, name)
            if EPOCH in spec.columns:
                for record in curves(cell.key):
                    x = _of_record(record, full[name])
                    if x is not None and isfinite(value := _scaled(x, scales)):
                        numbers.setdefault((row, str(record.get("epoch"))), []).append((cell, value))
                continue
            value = _of_run(runs[cell.key], curves, spec.last, full[name], scales)
            if not isfinite(value):
                missing.add(name)
                continue
            numbers.setdefault((row, label_of(spec, cell, spec.columns, name)), []).append((cell, value))
            if spec.x:
                x = _scaled(number_of(runs[cell.key], full[spec.x]), spec.scale.get(spec.x, ()))
                points.setdefault(row, []).append((x, value))
    rows, columns = (list(dict.fromkeys(label[i] for label in numbers)) for i in (0, 1))
    if EPOCH in spec.columns:
        columns.sort(key=int)
    entries = [_entry(spec, r, c, numbers) for r in rows for c in columns if (r, c) in numbers]
    notes = [*_notes(spec, entering, runs, numbers, missing), *_slopes(spec, points)]
    return Summary(spec, rows, columns, entries, notes, points)


def _enters(spec: TableSpec, cell: Cell) -> bool:
    if cell.stage and spec.runs not in ("all", cell.stage):
        return False
    return all(cell.value(name) in allowed for name, allowed in spec.where.items())


def _entry(
    spec: TableSpec, row: str, column: str, numbers: Mapping[tuple[str, str], Sequence[tuple[Cell, float]]]
) -> Entry:
    values = [value for _, value in numbers[row, column]]
    reference = numbers.get((spec.reference, column), ())
    ratio = any("ratio" in words for words in spec.scale.values())
    if ratio and reference:
        base = float(np.mean([value for _, value in reference]))
        values = [value / base for value in values]
    mean, error, low, high = mean_and_interval(values)
    entry = Entry(row, column, mean, error, len(values), low, high)
    ours, theirs = (_by_seed(of) for of in (numbers[row, column], reference))
    differences = np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs])
    if row == spec.reference or ratio or not len(differences):
        return entry
    # as in the study's comparisons: equal differences of a few rows are no exact ones
    step = smallest_step(np.array([value for of_one in numbers.values() for _, value in of_one]))
    difference = float(np.mean(differences))
    pairs = len(differences)
    spread = paired_spread(differences, np.zeros(pairs, dtype=np.int64), np.arange(pairs), {}, step)
    half = spread.half(1 - CONFIDENCE) if spread is not None else nan
    low, high = difference - half, difference + half
    return replace(entry, difference=difference, difference_low=low, difference_high=high, pairs=pairs)


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float, float]:
    """The mean, its standard error and its 95 % interval by Student's t; nan where one value gives none."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, nan, nan, nan
    error = float(np.std(values, ddof=1)) / sqrt(len(values))
    half = Spread.of([], Part("", len(values), len(values) - 1, error**2)).half(1 - CONFIDENCE)
    return mean, error, mean - half, mean + half


def _by_seed(runs: Sequence[tuple[Cell, float]]) -> dict[Any, float]:
    values: dict[Any, list[float]] = {}
    for cell, value in runs:
        values.setdefault(repr([cell.config.get(name) for name in SEEDS]), []).append(value)
    return {seed: float(np.mean(of_one)) for seed, of_one in values.items()}


def _of_run(run: Run, curves: Curves, last: int, name: str, scales: Sequence[str]) -> float:
    """A number of a run, or its mean over the last epochs that have it; nan if fewer have it."""
    if not last:
        return _scaled(number_of(run, name), scales)
    recorded = [x for record in curves(run.key) if (x := _of_record(record, name)) is not None]
    ends = [_scaled(x, scales) for x in recorded[-last:]]
    return float(np.mean(ends)) if len(ends) == last else nan


def number_of(run: Run, name: str) -> float:
    """A target, a measure, another number of a run or a setting with numbers; nan if it has none of that name."""
    setting = run.setting(name)
    return run.numbers.get(name, float(setting) if fits(setting, float) else nan)


def _of_record(record: Mapping[str, Any], name: str) -> float | None:
    """A number of an epoch's record, if it has it: an entry, a measure, or an error as one minus the accuracy."""
    measured = (record.get("measures") or {}).get(name)
    value = measured.get("value") if isinstance(measured, Mapping) else measured
    if value is None:
        value = record.get(name)
    if value is None and name.endswith("_error"):
        accuracy = record.get(name.removesuffix("error") + "accuracy")
        value = None if accuracy is None else 1 - accuracy
    return float(value) if isinstance(value, (int, float)) else None


def _scaled(value: float, scales: Sequence[str]) -> float:
    for scale in scales:
        value = SCALES[scale](value)
    return value


def _notes(
    spec: TableSpec,
    entering: Sequence[Cell],
    runs: Mapping[str, Run],
    numbers: Mapping[tuple[str, str], Sequence[tuple[Cell, float]]],
    missing: set[str],
) -> list[str]:
    """What a reader of the table has to know about its runs."""
    notes = [f"{len(runs)} of {len(entering)} runs are in the table."] if len(runs) < len(entering) else []
    notes += [f"Runs without {name} do not enter it." for name in sorted(missing)]
    mixed: dict[str, None] = {}
    for of_one in numbers.values():
        configs = [cell.config for cell, _ in of_one]
        names = dict.fromkeys(k for config in configs for k in config if k not in ALL_SEEDS)
        mixed |= dict.fromkeys(differing(names, configs))
    if mixed:
        notes.append(f"Means are over runs that also differ in {', '.join(mixed)}.")
    if spec.reference and not any(row == spec.reference for row, _ in numbers):
        notes.append(f"There is no run of {spec.reference}, which others are compared with.")
    return notes


def _slopes(spec: TableSpec, points: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    """The least-squares slope of a scatter's rows, with intervals."""
    if not spec.x:
        return []
    from ..ensembles.tradeoff import least_squares, slope_words  # imports torch

    fitted = {row: least_squares([p for p in of_row if all(map(isfinite, p))]) for row, of_row in points.items()}
    each = "; ".join(f"{row} {slope_words(e)}, n = {e.n}" for row, e in fitted.items())
    return [f"Slopes of the vertical over the horizontal axis, with 95 % intervals: {each}."]


def _taus(spec: TableSpec, measures: Sequence[str], targets: Sequence[str], findings: Findings) -> Summary:
    """A table of correlations; what is neither a row nor a column is the study's first."""
    axes, short, entries = (*spec.rows, *spec.columns), short_names(measures), []
    by_group = "group" in axes
    for f in findings.findings:
        if f.measure not in short or f.hypothesis != ("within groups" if by_group else spec.hypothesis):
            continue  # a measure of other studies on the same runs, or another hypothesis
        if ("measure" not in axes and f.measure != measures[0]) or ("target" not in axes and f.target != targets[0]):
            continue
        for of_group in f.by_group if by_group else [GroupTau("all", f.n, f.configurations, f.tau, f.low, f.high)]:
            names = {"measure": short[f.measure], "target": f.target, "group": of_group.group}
            labels = (" ".join(names[part] for part in parts) for parts in (spec.rows, spec.columns))
            row, column = (spec.labels.get(text, text) for text in labels)
            if isfinite(of_group.tau):
                entries.append(Entry(row, column, of_group.tau, nan, of_group.n, of_group.low, of_group.high))
    rows, columns = (list(dict.fromkeys(getattr(e, name) for e in entries)) for name in ("row", "column"))
    return Summary(spec, rows, columns, entries)


def full_name(name: str, measures: Sequence[str]) -> str:
    """The one measure of a study that has this name and radius and at least these options; else the name itself."""
    if name in measures or not measures:
        return name
    written = MeasureName.of(name)
    full = {measure: MeasureName.of(measure) for measure in measures}
    same = [m for m, one in full.items() if (one.base, one.radius) == (written.base, written.radius)]
    fitting = [m for m in same if written.options.items() <= full[m].options.items()]
    return fitting[0] if len(fitting) == 1 else name


def short_names(measures: Sequence[str]) -> dict[str, str]:
    """The names of measures without options, where no two of them differ in options alone."""
    bare = {name: str(replace(MeasureName.of(name), options={})) for name in measures}
    count = Counter(bare.values())
    return {name: short if count[short] == 1 else name for name, short in bare.items()}
