"""`steppe study`: a pool of runs is trained, measured and correlated, and told of in a table and on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answer import Answer, add, table
from .command import Command
from .options import called, many
from .study_answer import answer, cells_table
from .study_asked import How, Which, is_folder, known_of, study_of
from .trouble import Misuse, asking

if TYPE_CHECKING:
    from ..studies.plan import Study
    from ..studies.statistics.findings import Finding

PAGE = "report.html"


@dataclass(frozen=True)
class Dry:
    """Whether to run at all."""

    dry_run: bool = False
    """say which cells would be computed, and stop"""


@dataclass(frozen=True)
class Page:
    """Where the report goes."""

    page: str | None = field(default=None, metadata=called("FILE"))
    """the HTML file; by default report.html in the study's folder"""
    export: str | None = field(default=None, metadata=called("FILE"))
    """a .csv or .parquet file for what is known of every run, one row a run"""


@dataclass(frozen=True)
class More:
    """Which measures are added to which study."""

    names: list[str] = field(default_factory=list, metadata=many("MEASURE"))
    """measures by name, at a radius as in worst_linf@0.002; docs/measures.md has all"""
    study: str | None = field(default=None, metadata=called("FILE"))
    """a study's YAML file; without one, the digits study that comes with steppe"""
    out: str | None = field(default=None, metadata=called("FOLDER"))
    """the study's folder; by default what its file says, or studies/ and its name"""


def run(which: Which, how: How, dry: Dry) -> Answer:
    """Trains, measures, correlates and writes the report; what is there already stays."""
    study = study_of(which, how)
    if dry.dry_run:
        return _dry(study, how)
    return _run(study, how, ())


def add_measure(more: More, how: How) -> Answer:
    """Measures something more of all runs of a study."""
    if not more.names:
        raise Misuse("say which measures to add: steppe study add-measure trace worst_linf@0.002 --study study.yaml")
    study = study_of(Which(more.study, more.out), how)
    from ..measures.registry import resolve_measures

    with asking():
        resolve_measures(more.names)
    if not study.store.exists():
        raise FileNotFoundError(
            f"there is no study here: {study.store} does not exist, and measures are added to a study that has been "
            "run. `steppe study run` makes one; --study FILE or --out FOLDER name another"
        )
    return _run(study, how, more.names)


def status(which: Which) -> Answer:
    """How far a study is."""
    from ..studies.run import being_run

    study, cells, found = known_of(which)
    alive = being_run(study)
    runs = {r.key: r if alive or r.state != "running" else replace(r, state="open") for r in found.runs}
    rows = [
        {"key": c.key, "name": c.name, "state": runs[c.key].state if c.key in runs else "open"}
        | ({"error": runs[c.key].error} if c.key in runs and runs[c.key].error else {})
        for c in cells
    ]
    counts = Counter(row["state"] for row in rows)
    told = ", ".join(f"{n} {state}" for state in ("done", "running", "failed", "open") if (n := counts[state]))
    shown: list[Any] = [f"{study.folder}: {len(rows)} cells: {told}"]
    bad = [row for row in rows if row["state"] in ("failed", "running")]
    if bad:
        shown.append(cells_table(bad))
    old = len(runs) - sum(c.key in runs for c in cells)
    shown += [f"{old} more in the store are not in the study as it is now"] if old else []
    return Answer({"folder": study.folder, "counts": counts, "cells": rows, "not_in_study": old}, shown)


def report(which: Which, page: Page) -> Answer:
    """Writes the report once more, and prints the table."""
    from ..studies.export import export_table
    from ..studies.run import renote
    from ..studies.statistics.findings import finding, of_plan

    if not is_folder(which):
        renote(study_of(which))
    study, cells, table = known_of(which)
    found = finding(study, cells, table)
    if page.export is not None:
        export_table(of_plan(study, cells, table), page.export)
    return answer(study, replace(found, report=_page(study, page.page, found)))


def _run(study: Study, how: How, also: Sequence[str]) -> Answer:
    from ..studies.cell import cells, check_trust
    from ..studies.run import check_names
    from ..studies.run import run as run_study

    with asking():
        check_trust(study, planned := cells(study), how.trust)
        check_names(study, planned, also)
    found = run_study(study, progress=how.progress, again=how.again, also=also, trust=how.trust)
    if not found.stopped and found.done:
        found = replace(found, report=_page(study, None, found))
    return answer(study, found)


def _page(study: Study, out: str | None, found: Finding) -> Path:
    from ..studies.report import write

    return write(study.store, Path(out) if out is not None else study.folder / PAGE, found.held)


def _dry(study: Study, how: How) -> Answer:
    from ..studies.cell import cells, check_trust
    from ..studies.pictures import open_pictures
    from ..studies.run import check_data, check_names, open_tasks
    from ..studies.statistics.findings import admitted, of_plan
    from ..studies.store import Store
    from ..studies.table import Table

    planned, found, measures, notes = cells(study), Table([]), list(study.measures), {}
    with asking():
        check_trust(study, planned, how.trust)
        check_names(study, planned)
    if study.store.exists():
        from ..studies.run import measures_of

        with Store.reading(study.store) as store:
            found, measures, notes = store.table(), measures_of(study, store), store.notes()
    tasks = open_tasks(study, planned, found, measures, how.again)
    if study.engine.name != "ray":
        check_data([task.cell for task in tasks])
    pictures = open_pictures(study, planned, admitted(study, of_plan(study, planned, found)), notes, how.again)
    rows = [{"key": t.cell.key, "name": t.cell.name, "measures": list(t.measures)} for t in tasks]
    shown = table("cell", "run", "measures", fold=("run", "measures"))
    for row in rows:
        add(shown, row["key"], row["name"], ", ".join(row["measures"]))
    drawn = f" and {len(pictures)} pictures made" if pictures and not tasks else ""  # of which runs, they will show
    words = f"{len(tasks)} of {len(planned)} cells would be computed{drawn} in {study.folder}; nothing was"
    return Answer({"folder": study.folder, "cells": rows, "planned": len(planned)}, [*([shown] * bool(rows)), words])


COMMANDS = {
    "study run": Command(
        "study run", "Train a pool of runs, measure them, correlate, and write the report; the same command goes on.",
        (Which, How, Dry), run, ["steppe study run", "steppe study run study.yaml --workers 4"],
    ),
    "study status": Command(
        "study status", "Say how far a study is.", (Which,), status, ["steppe study status study.yaml"]
    ),
    "study report": Command(
        "study report", "Print what a study says so far, and write its page.", (Which, Page), report,
        ["steppe study report study.yaml --page report.html", "steppe study report study.yaml --export runs.csv"],
    ),
    "study add-measure": Command(
        "study add-measure", "Measure something more of all runs of a study.", (More, How), add_measure,
        ["steppe study add-measure trace worst_linf@0.002 --study study.yaml"],
    ),
}  # fmt: skip
