"""What a plan can show before its first run trains: crossed settings, pairs of methods, and rows of the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

from ..core.floor import before
from .cell import Cell
from .plan import Study
from .statistics.comparisons import pairings, reference_of, values_of
from .statistics.design import OWN, contenders
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
    levels = crossed([cell for cell in planned if cell.predicts], tuned)
    if len(levels) > 1:
        name, least = min(levels.items(), key=lambda pair: pair[1])
        words.append(
            f"{' and '.join(levels)} are crossed: the fewest levels, {least} of {name}, limit what correlations show. "
            "`random` draws settings for each run"
        )
    return [*words, *unpaired(study, planned, tuned)]


def crossed(planned: Sequence[Cell], own: Sequence[str]) -> dict[str, int]:
    """The factors that are crossed with another one, and their numbers of levels; contenders are one factor.

    Two factors are crossed if levels of each occur with several of the other. A setting that is drawn for every run, or
    a seed that belongs to one setting, is nested. `own` are settings of the contenders.
    """
    table = _table(planned)
    columns = {"method": contenders(table)}
    others = [n for n in table.settings() if n.partition(".")[0] not in OWN and n not in own]
    columns |= {name: list(map(repr, table.setting(name))) for name in others}
    found: dict[str, int] = {}
    for a, b in combinations(columns, 2):
        together = set(zip(columns[a], columns[b], strict=True))
        counts = [len(together) / len(set(columns[name])) for name in (a, b)]
        if min(counts) > 1:
            found |= {name: len(set(columns[name])) for name in (a, b)}
    return found


def unpaired(study: Study, planned: Sequence[Cell], tuned: Sequence[str]) -> list[str]:
    """The contenders of which no run has a partner, and in which settings they differ from the reference."""
    table = _table([cell for cell in planned if cell.stage != "sweep"])
    if len(set(values_of(table, study.compare))) < 2:
        return []
    reference, _ = reference_of(table, study.compare, study.reference)
    alone = [paired for paired in pairings(table, study.compare, reference, tuned) if paired.unpaired]
    if not alone:
        return []
    few = ", ".join(p.contender for p in alone) if len(alone) <= FEW else f"{len(alone)} contenders"
    return [
        f"No run of {few} has the settings and the seed of a run of {reference} ({alone[0].unpaired}). They are "
        "compared as independent samples, without pairs"
    ]


def _table(cells: Sequence[Cell]) -> Table:
    return Table([Run(c.key, c.name, c.config, c.groups, "open", {PLANNED: 0.0}, contender=c.contender) for c in cells])
