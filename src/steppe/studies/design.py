"""What a plan can show before its first run trains: settings that runs share, pairs, and rows of the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from ..core.floor import before
from .cell import Cell
from .plan import Study
from .statistics.comparisons import pairings, reference_of, values_of
from .statistics.design import design_of, plural
from .table import Run, Table

EXPECTED = 0.1  # test error of runs that are still to train
FEW = 3  # contenders that a sentence names
PLANNED = "planned"  # a target that stands for all


def design_words(
    study: Study, planned: Sequence[Cell], stored: Table, rows: Mapping[str, int], tuned: Sequence[str]
) -> list[str]:
    """What a reader of a plan should know; `rows` are numbers of test rows by data set."""
    errors = [run.targets["test_error"] for run in stored.runs if "test_error" in run.targets]
    words = [
        (f"{data}: " if len(rows) > 1 else "") + before(fmean(errors) if errors else EXPECTED, n, None)[2]
        for data, n in rows.items()
    ]
    few, factor = design_of(_table([cell for cell in planned if cell.predicts])).weakest
    if factor:
        words.append(
            f"Runs share settings, and there are only {few} {plural(factor)}: that limits what correlations can show. "
            "`random` draws settings for each run"
        )
    return [*words, *unpaired(study, planned, tuned)]


def unpaired(study: Study, planned: Sequence[Cell], tuned: Sequence[str]) -> list[str]:
    """The contenders of which no run has a partner, and in which settings they differ from the reference."""
    table = _table([cell for cell in planned if cell.stage != "sweep"])
    names = values_of(table, study.compare)
    if len(set(names)) < 2:
        return []
    reference, _ = reference_of(table, names, study.compare, study.reference)
    paired = pairings(table, names, design_of(table), study.compare, reference, tuned)
    alone = [one for one in paired if one.unpaired]
    if not alone:
        return []
    few = ", ".join(p.contender for p in alone) if len(alone) <= FEW else f"{len(alone)} contenders"
    return [
        f"No run of {few} has the settings and the seed of a run of {reference} ({alone[0].unpaired}). They are "
        "compared as independent samples, without pairs"
    ]


def _table(cells: Sequence[Cell]) -> Table:
    return Table([Run(c.key, c.name, c.config, c.groups, "open", {PLANNED: 0.0}, contender=c.contender) for c in cells])
