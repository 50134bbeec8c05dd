"""What a plan can show, before its first run trains: crossed settings, and pairs of methods."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .cell import Cell
from .statistics.comparisons import OWN, contenders, contest
from .table import Run, Table

FEW = 3  # contenders that a sentence names
PLANNED = "planned"  # a target that stands for all


def design_words(planned: Sequence[Cell], tuned: Sequence[str]) -> list[str]:
    """What a reader of a plan should know about its settings and pairs; `tuned` are settings of the contenders."""
    words = []
    levels = crossed([cell for cell in planned if cell.predicts], tuned)
    if len(levels) > 1:
        name, least = min(levels.items(), key=lambda pair: pair[1])
        words.append(
            f"{' and '.join(levels)} are crossed: the fewest levels, {least} of {name}, limit what correlations show. "
            "`random` draws settings for each run"
        )
    return [*words, *unpaired(planned, tuned)]


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


def unpaired(planned: Sequence[Cell], tuned: Sequence[str]) -> list[str]:
    """The contenders of which no run has a partner, and in which settings they differ from the reference."""
    table = _table([cell for cell in planned if cell.stage != "sweep"])
    found = contest(table, [PLANNED], tuned)
    alone = [c.contender for c in found.comparisons if not c.pairs]
    if not alone:
        return []
    names = contenders(table)
    own = {name: Table([run for run, of in zip(table.runs, names, strict=True) if of == name]) for name in set(names)}
    apart = [
        name
        for name in table.settings()
        if name.partition(".")[0] not in (*OWN, *tuned)
        and all(
            not {*map(repr, own[c].setting(name))} & {*map(repr, own[found.reference].setting(name))} for c in alone
        )
    ]
    which = f": they have other values of {', '.join(apart)}" if apart else ""
    few = ", ".join(alone) if len(alone) <= FEW else f"{len(alone)} contenders"
    return [
        f"No run of {few} has the settings and the seed of a run of {found.reference}{which}. They are compared as "
        "independent samples, without pairs"
    ]


def _table(cells: Sequence[Cell]) -> Table:
    return Table([Run(c.key, c.name, c.config, c.groups, "open", {PLANNED: 0.0}, contender=c.contender) for c in cells])
