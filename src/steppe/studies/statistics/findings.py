"""What a study finds: every measure against every target over the runs that count, and the answers in words.

`findings` is the one place that computes this; the terminal, JSON output and the page show its results. tau is Eq. 4 of
Andriushchenko et al. 2023 (tau-a), with tau-b beside it. "Within groups" means over pairs of runs in the same group, so
a group weighs as its number of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._util.names import unknown
from ..cell import Cell, groups_of
from ..plan import Rule, Study
from ..table import Column, Run, Table
from . import hypotheses
from .kendall import Floats
from .tau import Chance, Tau, kendall

LEVEL = 0.05  # a p-value, corrected for the number of measures, below this counts as a finding


@dataclass(frozen=True)
class Correlation:
    """One measure against one target: over all runs, over pairs within groups, and in each group by itself."""

    measure: str
    target: str
    pooled: Tau
    within: Tau | None = None
    by_group: dict[str, Tau] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One measure against one target, with the answers to both hypotheses."""

    correlation: Correlation
    strong: hypotheses.Answer
    weak: hypotheses.Answer

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below `LEVEL`."""
        return self.correlation.pooled.adjusted < LEVEL


@dataclass(frozen=True)
class Finding:
    """The progress of a study and its results so far.

    Attributes
    ----------
    folder : Path
        The study's folder.
    planned, done, admitted : int
        Cells in the plan, finished cells, and finished cells within the admission rules.
    failures : mapping of str to str
        Errors of failed cells by name.
    held : sequence of Comparison
        Every measure against every target.
    words : sequence of str
        The results in sentences.
    report : Path or None
        The page, if it was written.
    stopped : str
        Why the study stopped early; empty if it did not.

    """

    folder: Path
    planned: int
    done: int
    failures: Mapping[str, str] = field(default_factory=dict)
    admitted: int = 0
    held: Sequence[Comparison] = ()
    words: Sequence[str] = ()
    report: Path | None = None
    stopped: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def holm(p: ArrayLike) -> Floats:
    """Holm 1979: bounds the chance of one false finding or more, whatever the dependence."""
    return _stepwise(p, lambda p, n: np.maximum.accumulate((n - np.arange(n)) * p))


def benjamini_hochberg(p: ArrayLike) -> Floats:
    """Benjamini and Hochberg 1995: bounds the expected share of false findings among the findings."""
    return _stepwise(p, lambda p, n: np.minimum.accumulate((p * n / np.arange(1, n + 1))[::-1])[::-1])


def _stepwise(p: ArrayLike, adjust: Callable[[Floats, int], Floats]) -> Floats:
    """Adjust sorted p-values; missing ones (nan) stay missing and are not counted."""
    values = np.asarray(p, dtype=np.float64)
    present = np.flatnonzero(~np.isnan(values))
    order = present[np.argsort(values[present], kind="stable")]
    adjusted = np.full(values.shape, np.nan)
    adjusted[order] = np.minimum(1, adjust(values[order], len(order)))
    return adjusted


CORRECTIONS: dict[str, Callable[[ArrayLike], Floats]] = {"holm": holm, "benjamini-hochberg": benjamini_hochberg}

# Holm by default: measures are variants of one idea at several radii with unknown dependence, which
# Benjamini-Hochberg's bound does not cover, and readers take each significant measure for a finding of its own.
DEFAULT = "holm"


def correlation(x: Column, y: Column, labels: ArrayLike | None = None, how: Chance = Chance()) -> Correlation:  # noqa: B008
    """Correlate a measure with a target over all runs and, with more than one group, within groups."""
    errors = {"x_error": x.errors, "y_error": y.errors}
    pooled = kendall(x.values, y.values, how=how, **errors)
    groups = np.asarray(labels) if labels is not None else np.zeros(len(x.values), dtype=str)
    names = np.unique(groups)
    if len(names) < 2:
        return Correlation(x.name, y.name, pooled)
    within = kendall(x.values, y.values, groups, how=how, **errors)
    by_group = {}
    for name in names:
        rows = groups == name
        group_errors = {side: e[rows] for side, e in errors.items()}
        by_group[str(name)] = kendall(x.values[rows], y.values[rows], how=how, **group_errors)
    return Correlation(x.name, y.name, pooled, within, by_group)


def correlations(
    table: Table,
    measures: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    correction: str = DEFAULT,
    how: Chance = Chance(),  # noqa: B008
) -> list[Correlation]:
    """Correlate every measure with every target.

    Parameters
    ----------
    table : Table
        The runs that count.
    measures, targets : sequence of str, optional
        Names; all that the table has by default.
    correction : {"holm", "benjamini-hochberg"}
        How p-values are corrected for the number of measures, target by target.
    how : Chance
        Level, numbers of draws and seed.

    Returns
    -------
    list of Correlation
        Target by target, in the order of the names.

    """
    if correction not in CORRECTIONS:
        raise ValueError(unknown("correction", correction, CORRECTIONS))
    labels, corrected = table.labels(), CORRECTIONS[correction]
    results: list[Correlation] = []
    for target in table.targets if targets is None else targets:
        y = table.target(target)
        names = table.measures if measures is None else measures
        rows = [correlation(table.measure(m), y, labels, how) for m in names]
        pooled = corrected([row.pooled.p for row in rows])
        within = corrected([row.within.p if row.within else nan for row in rows])
        for row, p, q in zip(rows, pooled, within, strict=True):
            both = replace(row.within, adjusted=float(q)) if row.within else None
            results.append(replace(row, pooled=replace(row.pooled, adjusted=float(p)), within=both))
    return results


def findings(
    table: Table,
    measures: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    how: Chance = Chance(),  # noqa: B008
) -> list[Comparison]:
    """Compare every measure with every target over the runs that count, and answer both hypotheses."""
    results = []
    for row in correlations(table, measures, targets, how=how):
        x, y = table.measure(row.measure), table.target(row.target)
        strong = hypotheses.strong(row.pooled, row.within)
        results.append(Comparison(row, strong, hypotheses.weak(x.values, y.values, how=how)))
    return results


def of_plan(study: Study, cells: Sequence[Cell], table: Table) -> Table:
    """The runs of a store that are in the study's current plan, in its order and with its groups."""
    runs = {run.key: run for run in table.runs}
    stored = (c for c in cells if c.key in runs)
    return renamed(table, ((c.key, c.name, c.groups or groups_of(study, runs[c.key].config)) for c in stored))


def renamed(table: Table, cells: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Table:
    """The runs of a table with these keys, in this order and with these names and groups."""
    runs = {run.key: run for run in table.runs}
    return Table([replace(runs[key], name=name, groups=groups) for key, name, groups in cells if key in runs])


def admitted(study: Study, table: Table) -> Table:
    """The runs that count: finished, and within the study's admission rules."""
    return table.where(lambda run: counts(run, study.admission))


def counts(run: Run, rules: Iterable[Rule]) -> bool:
    """Whether a run is finished and within the rules."""
    numbers = {**run.meta, **{k: m.value for k, m in run.measures.items()}, **run.targets}
    return run.state == "done" and all(rule.holds(numbers) for rule in rules)


def in_order(first: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """The names, those that a study lists first and in its order."""
    return [*(n for n in first or () if n in names), *(n for n in names if n not in (first or ()))]


def finding(study: Study, cells: Sequence[Cell], table: Table, how: Chance = Chance()) -> Finding:  # noqa: B008
    """Summarise a study; `table` is all that its store holds."""
    planned = of_plan(study, cells, table)
    done = [run for run in planned.runs if run.state == "done"]
    counted = admitted(study, planned)
    failures = {run.name: run.error for run in planned.runs if run.state == "failed"}
    targets = [t for t in study.targets if t in counted.targets]
    results = findings(counted, in_order(study.measures, counted.measures), targets, how) if len(counted) else []
    words = _sentences(study, len(planned), len(counted), results)
    return Finding(study.folder, len(cells), len(done), failures, len(counted), results, words)


def _sentences(study: Study, planned: int, counted: int, results: Sequence[Comparison]) -> list[str]:
    rules = " and ".join(map(str, study.admission))
    which = f"{planned} planned; finished runs{' with ' + rules if rules else ''} count"
    if not results:
        return [f"There is nothing to correlate yet: {counted} runs count ({which})."]
    lines = [f"{counted} runs count ({which})."]
    for target in dict.fromkeys(r.correlation.target for r in results):
        lines.append(_sentence(target, [r for r in results if r.correlation.target == target]))
    return lines


def _sentence(target: str, results: Sequence[Comparison]) -> str:
    """Whether sharpness predicts this target, in a sentence with numbers."""
    n = len(results)
    up = [r for r in results if r.significant and r.correlation.pooled.tau > 0]
    down = [r for r in results if r.significant and r.correlation.pooled.tau < 0]
    taus = [r.correlation.pooled.tau for r in results if isfinite(r.correlation.pooled.tau)]
    span = f"tau from {min(taus):+.2f} to {max(taus):+.2f}" if taus else "no tau"
    if up and not down:
        conclusion = f"flatter runs have a lower {target} by {len(up)} of {n} measures ({_names(up)})"
    elif down and not up:
        conclusion = f"flatter runs have a HIGHER {target} by {len(down)} of {n} measures ({_names(down)})"
    elif up and down:
        conclusion = f"measures disagree: flatter is better by {_names(up)}, and worse by {_names(down)}"
    else:
        conclusion = f"none of {n} measures predicts {target}: no tau differs from zero beyond chance"
    return f"{target}: {conclusion} ({span}; {_verdicts(results, 'strong')}; {_verdicts(results, 'weak')})."


def _names(results: Sequence[Comparison]) -> str:
    return ", ".join(r.correlation.measure for r in results)


def _verdicts(results: Sequence[Comparison], kind: str) -> str:
    """How many measures support a hypothesis, and how many contradict it."""
    verdicts = [getattr(r, kind).verdict for r in results]
    against = verdicts.count("contradicted")
    supporting = f"{verdicts.count('supported')} of {len(results)} support the {kind} hypothesis"
    return supporting + (f" and {against} contradict{'s' if against == 1 else ''} it" if against else "")
