"""Tables of a study beside printed numbers, such as those of a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from .._util.formats import json_safe
from .._util.numbers import number, span, with_error
from .protocol import EPOCH

if TYPE_CHECKING:
    from .summary import Entry, Summary

MOST = 8  # columns in the terminal and in Markdown: curves have more, which the page and the CSV file have


@dataclass(frozen=True)
class Printed:
    """A number of the paper: its value, its error if one is printed, and where it stands."""

    value: float
    error: float | None
    place: str


@dataclass(frozen=True)
class Compared:
    """A table of ours with the paper's numbers by row and column."""

    ours: Summary
    paper: Mapping[tuple[str, str], Printed]

    @property
    def name(self) -> str:
        """The table's name, with its title if it has one."""
        return self.ours.spec.title or self.ours.spec.name

    def inside(self, entry: Entry) -> bool | None:
        """Whether the paper's number is in our 95 % interval; None if one of the two is missing."""
        printed = self.paper.get((entry.row, entry.column))
        if printed is None or not isfinite(entry.low):
            return None
        return entry.low <= printed.value <= entry.high

    def records(self) -> list[dict[str, Any]]:
        """One row per cell, with everything known."""
        rows = []
        for e in self.ours.entries:
            printed = self.paper.get((e.row, e.column), Printed(nan, None, ""))
            theirs = {"paper": printed.value, "paper_error": printed.error, "place": printed.place}
            rows.append(json_safe({"table": self.ours.spec.name, **asdict(e), **theirs, "inside": self.inside(e)}))
        return rows


def compare(tables: Sequence[Summary], printed: Mapping[tuple[str, str, str], Printed]) -> list[Compared]:
    """Each table with the paper's numbers."""
    return [
        Compared(t, {(row, column): p for (table, row, column), p in printed.items() if table == t.spec.name})
        for t in tables
    ]


def lines(table: Compared) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: per row of the table a line of ours, one of the paper's and one of differences."""
    ours = table.ours
    columns = list(ours.columns)
    if len(columns) > MOST:
        step = (len(columns) - 1) / (MOST - 1)
        columns = [columns[round(i * step)] for i in range(MOST)]
    rows = []
    for row in ours.rows:
        entries = {c: ours.entry(row, c) for c in columns}
        rows.append([row, *(_ours(entries[c]) for c in columns)])
        theirs = [_theirs(table, row, c, entries[c]) for c in columns]
        rows += [["  paper", *theirs]] if any(theirs) else []
        differences = [_difference(entries[c]) for c in columns]
        rows += [[f"  minus {ours.spec.reference}", *differences]] if any(differences) else []
    return ["epoch" if EPOCH in ours.spec.columns else "", *columns], rows


def remarks(table: Compared) -> list[str]:
    """What the lines mean, how many of the paper's numbers are inside, and the notes of the table."""
    entries = table.ours.entries
    inside = [table.inside(e) for e in entries]
    if not entries:
        return ["No runs yet.", *table.ours.notes]
    sentences = [f"n = {span([e.n for e in entries])} runs per cell, ± one standard error."]
    if any(v is not None for v in inside):
        sentences.append(
            f"{inside.count(True)} of {len(inside) - inside.count(None)} numbers of the paper are in the 95 % interval "
            "of ours; * marks the others."
        )
    without = [key for key in table.paper if table.ours.entry(*key) is None]
    sentences += [f"{len(without)} of {len(table.paper)} numbers of the paper have no run here."] if without else []
    return [*sentences, *table.ours.notes]


def _ours(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if isfinite(entry.error):
        return f"{with_error(entry.value, entry.error)} ({entry.n})"
    if isfinite(entry.low):
        return f"{number(entry.value)} [{number(entry.low)}, {number(entry.high)}] ({entry.n})"
    return f"{number(entry.value)} ({entry.n})"


def _theirs(table: Compared, row: str, column: str, entry: Entry | None) -> str:
    printed = table.paper.get((row, column))
    if printed is None:
        return ""
    mark = "*" if entry is not None and table.inside(entry) is False else ""
    return f"{printed.value:g}{f' ± {printed.error:g}' if printed.error is not None else ''}{mark}"


def _difference(entry: Entry | None) -> str:
    if entry is None or not entry.pairs:
        return ""
    if not isfinite(entry.difference_low):
        return f"{entry.difference:+.3g} ({entry.pairs})"
    return f"{entry.difference:+.3g} [{entry.difference_low:+.3g}, {entry.difference_high:+.3g}] ({entry.pairs})"
