"""Which runs of a study count, and why the others do not: decided here, for the terminal, the page and every table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .cell import Cell, groups_of
from .plan import Study
from .protocol import Rule
from .table import Run, Table


@dataclass(frozen=True)
class Pool:
    """The runs of a study's plan.

    Attributes
    ----------
    planned : Table
        All runs in the store that are in the plan, in its order, with its names, groups and contenders.
    counted : Table
        Those that are finished and within the rules, of all stages.
    related, compared : Table
        Those over which measures are correlated with targets, and those over which contenders are compared.
    excluded : mapping of str to str
        Why each of the others does not count, by key.

    """

    planned: Table
    counted: Table
    related: Table
    compared: Table
    excluded: Mapping[str, str]

    @classmethod
    def of(cls, study: Study, cells: Iterable[Cell], table: Table) -> Pool:
        """The pool of a study with these cells, of the runs that its store holds."""
        runs = {run.key: run for run in table.runs}
        stored = [cell for cell in cells if cell.key in runs]
        planned = [
            replace(
                runs[cell.key],
                name=cell.name,
                groups=cell.groups or groups_of(study, runs[cell.key].config),
                contender=cell.contender,
            )
            for cell in stored
        ]
        whole = Table(planned)
        excluded = {run.key: why for run in planned if (why := _why(run, study.admission))}
        counted = whole.where(lambda run: run.key not in excluded)
        relates = {cell.key for cell in stored if cell.predicts}
        swept = {cell.key for cell in stored if cell.stage == "sweep"}
        related = counted.where(lambda run: run.key in relates)
        return cls(whole, counted, related, counted.where(lambda run: run.key not in swept), excluded)

    @property
    def used(self) -> list[Run]:
        """The runs that any verdict is on, in the order of the plan."""
        keys = {run.key for part in (self.related, self.compared) for run in part.runs}
        return [run for run in self.counted.runs if run.key in keys]


def _why(run: Run, rules: Sequence[Rule]) -> str:
    """Why a run does not count; empty if it does."""
    if run.state != "done":
        return f"it failed: {run.error}" if run.state == "failed" else "it is not finished"
    return next((f"{rule} does not hold" for rule in rules if not rule.holds(run.numbers)), "")
