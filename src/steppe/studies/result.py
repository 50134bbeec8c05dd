"""The result of a study: its progress, and what it finds over the runs that count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cell import Cell, groups_of
from .plan import Study
from .protocol import Rule
from .statistics.findings import Findings, findings
from .table import Run, Table

if TYPE_CHECKING:
    from .summary import Summary


@dataclass(frozen=True)
class StudyResult:
    """The progress of a study and its findings so far.

    Attributes
    ----------
    folder : Path
        The study's folder.
    planned, done, admitted : int
        Cells in the plan, finished cells, and finished cells within the admission rules.
    failures : mapping of str to str
        Errors of failed cells by name.
    findings : Findings
        The verdicts.
    words : sequence of str
        The findings in sentences.
    report : Path or None
        The page, if it was written.
    stopped : str
        Why the study stopped early; empty if it did not.
    tables : sequence of Summary
        The tables of the study's file.

    Examples
    --------
    `run` of `steppe.studies.run` returns one. By hand:

    >>> import pathlib
    >>> result = steppe.studies.StudyResult(pathlib.Path("studies/rates"), 6, 5, {"lr=9": "the loss is not finite"})
    >>> result.planned, result.done, list(result.failures)
    (6, 5, ['lr=9'])

    """

    folder: Path
    planned: int
    done: int
    failures: Mapping[str, str] = field(default_factory=dict)
    admitted: int = 0
    findings: Findings = Findings(0, 0)  # noqa: RUF009, a frozen value
    words: Sequence[str] = ()
    report: Path | None = None
    stopped: str = ""
    tables: Sequence[Summary] = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def study_result(study: Study, cells: Sequence[Cell], table: Table, tuned: Sequence[str] = ()) -> StudyResult:
    """Summarise a study; `table` is all that its store holds, and `tuned` are settings selected for each method."""
    planned = of_plan(study, cells, table)
    done = [run for run in planned.runs if run.state == "done"]
    final = {cell.key for cell in cells if cell.stage != "sweep"}  # a sweep chooses, and does not count
    counted = admitted(study, planned).where(lambda run: run.key in final)
    failures = {run.name: run.error for run in planned.runs if run.state == "failed"}
    verdicts = findings_of(counted, study.measures, study.targets, tuned=tuned)
    rules = " and ".join(map(str, study.admission))
    which = f"{len(planned)} planned; finished runs{' with ' + rules if rules else ''} count"
    words = [f"{len(counted)} runs count ({which}).", verdicts.sentence]
    words += [verdicts.method_sentence] if verdicts.comparisons else []
    words += [verdicts.row_sentence] if verdicts.row_sentence else []
    return StudyResult(study.folder, len(cells), len(done), failures, len(counted), verdicts, words)


def findings_of(counted: Table, measures: Sequence[str], targets: Sequence[str], **how: Any) -> Findings:
    """The findings on the targets of a study, its measures in its order and others after them."""
    chosen = [t for t in targets if t in counted.targets]
    return findings(counted, in_order(measures, counted.measures), chosen, **how)


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
    return run.state == "done" and all(rule.holds(run.numbers) for rule in rules)


def in_order(first: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """The names, those that a study lists first and in its order."""
    return [*(n for n in first or () if n in names), *(n for n in names if n not in (first or ()))]
