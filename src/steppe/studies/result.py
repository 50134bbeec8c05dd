"""The result of a study: its progress, and what it finds over the runs that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cell import Cell
from .plan import Study
from .pool import Pool
from .statistics.findings import Findings, findings
from .table import Table

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
        Errors of failed cells by name, and of finished ones to which a measure or a picture could not be added.
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

    def __repr__(self) -> str:
        """One line, for interactive use."""
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"StudyResult({self.folder}: {self.done} of {self.planned} runs{failed})"

    def _repr_html_(self) -> str:
        """The findings in sentences, for notebooks."""
        return "".join(f"<p>{escape(text)}</p>" for text in (repr(self), *self.words))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def study_result(study: Study, cells: Sequence[Cell], table: Table, tuned: Sequence[str] = ()) -> StudyResult:
    """Summarise a study; `table` is all that its store holds, and `tuned` are settings selected for each method."""
    pool = Pool.of(study, cells, table)
    done = [run for run in pool.planned.runs if run.state == "done"]
    failures = {run.name: run.error for run in pool.planned.runs if run.state == "failed"}
    verdicts = findings_of(pool, study, study.targets, tuned=tuned)
    rules = " and ".join(map(str, study.admission))
    trials = {cell.key for cell in cells if cell.stage == "sweep" and not cell.predicts}  # their winners run again
    n, of = len(pool.used), sum(run.key not in trials for run in pool.planned.runs)
    part = f"{n} of {of} planned runs are included: those that are finished{' and have ' + rules if rules else ''}."
    words = [("The run is included." if n == 1 else f"All {n} runs are included.") if n == of else part]
    words += [verdicts.sentence] if study.measures or not verdicts.comparisons else []  # of methods alone otherwise
    words += [verdicts.method_sentence] if verdicts.comparisons else []
    words += [verdicts.row_sentence] if verdicts.row_sentence else []
    return StudyResult(study.folder, len(cells), len(done), failures, len(pool.used), verdicts, words)


def findings_of(pool: Pool, study: Study, targets: Sequence[str], **how: Any) -> Findings:
    """The findings on some targets, the measures of the study in its order and others after them."""
    chosen = [t for t in targets if t in pool.counted.targets]
    measures = in_order(study.measures, pool.related.measures)
    how = {"compared": pool.compared, "compare": study.compare, "reference": study.reference, **how}
    return findings(pool.related, measures, chosen, **how)


def in_order(first: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """The names, those that a study lists first and in its order."""
    return [*(n for n in first or () if n in names), *(n for n in names if n not in (first or ()))]
