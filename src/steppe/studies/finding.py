"""What a study says: correlations over the runs that count, and the two hypotheses answered in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from . import hypotheses
from .cell import Cell, groups_of
from .correlate import Chance, Correlation, correlations
from .plan import Rule, Study
from .table import Run, Table

LEVEL = 0.05  # below which a p-value, corrected for the number of measures, counts as a finding


@dataclass(frozen=True)
class Held:
    """One measure against one target, with what that says to both hypotheses."""

    correlation: Correlation
    strong: hypotheses.Answer
    weak: hypotheses.Answer

    @property
    def found(self) -> bool:
        """Whether chance alone hardly gives such a correlation."""
        return self.correlation.pooled.adjusted < LEVEL


@dataclass(frozen=True)
class Finding:
    """How far a study is, and what it says so far."""

    folder: Path
    planned: int
    done: int
    failures: Mapping[str, str] = field(default_factory=dict)  # of cells, by name
    admitted: int = 0
    held: Sequence[Held] = ()
    words: Sequence[str] = ()
    report: Path | None = None
    stopped: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        from dataclasses import asdict

        return asdict(self)


def of_plan(study: Study, cells: Sequence[Cell], table: Table) -> Table:
    """The runs of a store that the study plans as it is now, in its order and with its groups."""
    have = {run.key: run for run in table.runs}
    there = (c for c in cells if c.key in have)
    return renamed(table, ((c.key, c.name, c.groups or groups_of(study, have[c.key].config)) for c in there))


def renamed(table: Table, cells: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Table:
    """The runs of a table with these keys, in this order and with these names and groups."""
    have = {run.key: run for run in table.runs}
    return Table([replace(have[key], name=name, groups=groups) for key, name, groups in cells if key in have])


def admitted(study: Study, table: Table) -> Table:
    """The runs that count: done, and within the study's rules."""
    return table.where(lambda run: counts(run, study.admission))


def counts(run: Run, rules: Iterable[Rule]) -> bool:
    """Whether a run is done and within the rules."""
    numbers = {**run.meta, **{k: m.value for k, m in run.measures.items()}, **run.targets}
    return run.state == "done" and all(rule.holds(numbers) for rule in rules)


def finding(study: Study, cells: Sequence[Cell], table: Table, how: Chance = Chance()) -> Finding:  # noqa: B008
    """What the runs of a study say; `table` is all that its store has."""
    planned = of_plan(study, cells, table)
    done = [run for run in planned.runs if run.state == "done"]
    counted = admitted(study, planned)
    failures = {run.name: run.error for run in planned.runs if run.state == "failed"}
    targets = [t for t in study.targets if t in counted.targets]
    measures = [m for m in study.measures if m in counted.measures]
    measures += [m for m in counted.measures if m not in measures]
    held = findings(counted, measures, targets, how) if len(counted) else []
    words = _words(study, planned, counted, held)
    return Finding(study.folder, len(cells), len(done), failures, len(counted), held, words)


def findings(
    table: Table,
    measures: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    how: Chance = Chance(),  # noqa: B008
) -> list[Held]:
    """Every measure against every target over the runs that count, with what that says to both hypotheses.

    The one place that computes it: the terminal, JSON output and the page all show this.
    """
    found = []
    for row in correlations(table, measures, targets, how=how):
        x, y = table.measure(row.measure), table.target(row.target)
        strong = hypotheses.strong(row.pooled, row.within)
        found.append(Held(row, strong, hypotheses.weak(x.values, y.values, how=how)))
    return found


def _words(study: Study, planned: Table, counted: Table, held: Sequence[Held]) -> list[str]:
    n, rules = len(counted), " and ".join(map(str, study.admission))
    left = f" ({len(planned)} planned; those count that are done{' with ' + rules if rules else ''})"
    if not held:
        return [f"There is nothing to correlate yet: {n} runs count{left}."]
    lines = [f"{n} runs count{left}."]
    for target in dict.fromkeys(h.correlation.target for h in held):
        lines.append(_answer(target, [h for h in held if h.correlation.target == target]))
    return lines


def _answer(target: str, held: Sequence[Held]) -> str:
    """Does sharpness predict this target here? In a sentence with numbers."""
    many = len(held)
    taus = [h.correlation.pooled.tau for h in held]
    up = [h for h in held if h.found and h.correlation.pooled.tau > 0]
    down = [h for h in held if h.found and h.correlation.pooled.tau < 0]
    finite = [t for t in taus if isfinite(t)]
    span = f"tau from {min(finite):+.2f} to {max(finite):+.2f}" if finite else "no tau"
    if up and not down:
        says = f"flatter runs have a lower {target} by {len(up)} of {many} measures ({_names(up)})"
    elif down and not up:
        says = f"flatter runs have a HIGHER {target} by {len(down)} of {many} measures ({_names(down)})"
    elif up and down:
        says = f"measures disagree: {_names(up)} say that flatter is better, {_names(down)} that it is worse"
    else:
        says = f"none of {many} measures predicts {target}: no tau differs from zero beyond chance"
    counts = [_verdicts(held, kind) for kind in ("strong", "weak")]
    return f"{target}: {says} ({span}; {'; '.join(counts)})."


def _names(held: Sequence[Held]) -> str:
    return ", ".join(h.correlation.measure for h in held)


def _verdicts(held: Sequence[Held], kind: str) -> str:
    """How many measures speak for a hypothesis, and against it where any does."""
    verdicts = [getattr(h, kind).verdict for h in held]
    against = verdicts.count("contradicted")
    said = f"{verdicts.count('supported')} of {len(held)} support the {kind} hypothesis"
    return said + (f" and {against} contradict{'s' if against == 1 else ''} it" if against else "")
