"""`steppe study` and `steppe report`: train a pool of runs, measure and correlate, print a table and write a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.terminal import complain
from .._util.user_code import check_form, is_factory
from .options import command
from .output import Output, UsageError, table, usage_errors
from .study_options import Engine, Which, store_of, study_and_results, study_of
from .study_output import error_lines, exit_code, heading, output_of

if TYPE_CHECKING:
    from ..studies.plan import Study
    from ..studies.statistics.findings import Findings
    from ..studies.table import Table

PAGE = "report.html"


@dataclass(frozen=True)
class Dry:
    """Whether to run at all."""

    dry_run: bool = False
    """list the cells that would be computed, and stop"""


@dataclass(frozen=True)
class Share:
    """Which of several processes this is."""

    part: str | None = field(default=None, metadata={"metavar": "K/N"})
    """compute the K-th of N parts, with records of its own; `study run` without a part takes them in"""


@dataclass(frozen=True)
class Page:
    """Where the report goes."""

    page: str | None = field(default=None, metadata={"metavar": "FILE"})
    """the HTML file; defaults to report.html in the study's folder"""
    export: str | None = field(default=None, metadata={"metavar": "FILE"})
    """a .csv or .parquet file with one row per run; the verdicts go to a file beside it, NAME_findings"""


@dataclass(frozen=True)
class More:
    """Which measures to add to which study."""

    names: list[str] = field(default_factory=list, metadata={"metavar": "MEASURE", "nargs": "*"})
    """measures by name, with a radius as in worst_linf@0.002; `steppe measures` lists them"""
    study: str | None = field(default=None, metadata={"metavar": "FILE"})
    """the study's YAML file, or digits for the built-in study"""
    out: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """the study's folder; defaults to the file's own, or studies/NAME"""


@dataclass(frozen=True)
class New:
    """The study file to write."""

    file: str = field(default="study.yaml", metadata={"metavar": "FILE", "nargs": "?"})
    """the file to write"""
    data: str = "digits"
    """data set: `steppe data list`, `folder:PATH` or `npz:PATH`"""
    model: str = "mlp"
    """model: `steppe models`, or `package.module:factory`"""


@command("study init")
def init(new: New) -> Output:
    """Write a commented study file for a data set and a model.

    Examples
    --------
    steppe study init
    steppe study init cifar.yaml --data cifar10 --model resnet18

    """
    from ..data.catalogue import DATASETS
    from ..data.registry import load
    from ..nn.registry import check_options
    from ..studies.plan import Study
    from ..studies.template import study_text
    from ..training.config import Config, check_config

    file = Path(new.file)
    if file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"a study's file ends in .yaml, not {new.file!r}")
    with usage_errors():
        check_config(Config(data=new.data))
        if is_factory(new.model):
            check_form(new.model, "model")
        else:
            check_options(new.model, {})
    shown = [f"{file} is written. Next: steppe study run {file} --dry-run"]
    classes, rows = True, None
    name = new.data.partition("@")[0]
    if name in DATASETS and DATASETS[name].layouts:
        try:
            DATASETS[name].find(Config().data_root)
        except FileNotFoundError as error:
            shown.append(str(error))
    elif not new.data.startswith("folder:"):  # which always has classes; these are small
        train = load(new.data).train
        classes, rows = bool(train.classes), len(train)
    out = Study(file.stem).folder
    text = study_text(str(file), str(out), new.data, new.model, classes=classes, rows=rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists and stays as it is: give another name, or remove it") from None
    return Output({"file": file, "data": new.data, "model": new.model}, shown)


@command("study run")
def run(which: Which, engine: Engine, share: Share, dry: Dry) -> Output:
    """Train a pool of runs, measure, correlate, write the report; rerun the command to resume.

    Examples
    --------
    steppe study run
    steppe study run study.yaml --workers 4
    steppe study run study.yaml --part 3/8

    """
    from ..studies.parts import part_of, take_in

    study = study_of(which, engine)
    if share.part is not None:
        with usage_errors():
            study = part_of(study, share.part, engine.again)
    elif not dry.dry_run:
        take_in(study)
    return _dry(study, engine) if dry.dry_run else _run(study, engine, ())


@command("study add-measure")
def add_measure(more: More, engine: Engine) -> Output:
    """Add measures to all runs of a study.

    Examples
    --------
    steppe study add-measure trace worst_linf@0.002 --study study.yaml

    """
    if not more.names:
        raise UsageError("name the measures to add: steppe study add-measure trace worst_linf@0.002 --study study.yaml")
    if more.study is None:
        raise UsageError(
            "name the study to add measures to: --study study.yaml, or --study digits for the built-in one"
        )
    study = study_of(Which(more.study, more.out), engine)
    from ..measures.registry import resolve_measures
    from ..studies.plan import measures_in, split_measures

    with usage_errors():
        resolve_measures(split_measures(more.names)[0])
        names = measures_in(more.names)
    if not study.store.exists():
        raise FileNotFoundError(
            f"this study has not run: {study.store} does not exist, and measures are added to a study that has run. "
            f"Run it first: steppe study run {more.study}; --out FOLDER names another folder"
        )
    return _run(study, engine, names)


@command("study status")
def status(which: Which) -> Output:
    """Show how many cells of a study are done.

    Examples
    --------
    steppe study status study.yaml

    """
    from ..studies.plan import TEXTS
    from ..studies.run import being_run

    study, cells, results = study_and_results(which)
    alive = being_run(study)
    runs = {r.key: r if alive or r.state != "running" else replace(r, state="open") for r in results.runs}
    rows = [{"key": c.key, "name": c.name, "state": runs[c.key].state if c.key in runs else "open"} for c in cells]
    for row in rows:
        if row["key"] in runs and (error := runs[row["key"]].error):
            row["error"] = error
    counts = Counter(row["state"] for row in rows)
    states = ", ".join(f"{n} {state}" for state in ("done", "running", "failed", "open") if (n := counts[state]))
    shown: list[Any] = [*heading(study), f"{study.folder}: {len(rows)} cells: {states}"]
    listed = [
        (row["key"], row["state"], row["name"], row.get("error", ""))
        for row in rows
        if row["state"] in ("failed", "running")
    ]
    shown += [table(("cell", "state", "run", "error"), listed, fold=("error", "run"))] if listed else []
    old = len(runs) - sum(c.key in runs for c in cells)
    shown += [f"{old} more in the store are not in the study as it is now"] if old else []
    texts = {name: getattr(study, name) for name in TEXTS if getattr(study, name)}
    data = {"folder": study.folder, **texts, "counts": counts, "cells": rows, "not_in_study": old}
    return Output(data, shown)


@command("study report")
def report(which: Which, page: Page) -> Output:
    """Print the findings of a study so far, and write its page.

    Examples
    --------
    steppe study report study.yaml --page report.html
    steppe study report study.yaml --export runs.csv

    """
    from ..studies.export import export_findings, export_table
    from ..studies.pool import Pool
    from ..studies.run import look, renote, result_of
    from ..studies.store import Store

    if which.is_folder:
        study, cells, results = study_and_results(which)
    else:
        study = study_of(which)
        cells, results = look(study)
        renote(study, cells)
    with Store.reading(study.store, whole=False) as store:
        result = result_of(study, cells, store, results)
    if page.export is not None:
        place = export_table(Pool.of(study, cells, results).planned, page.export)
        export_findings(result.findings, place.with_name(f"{place.stem}_findings{place.suffix}"))
    return output_of(study, replace(result, report=_page(study, page.page, result.findings, results)))


@command("report serve")
def serve(which: Which) -> Output:
    """Keep a study's page current while the study runs.

    Examples
    --------
    steppe report serve study.yaml

    """
    from ..studies.report import serve as serve_page

    store = store_of(which)
    page = serve_page(store, store.parent / PAGE, ready=lambda text: complain(f"{text} (Ctrl-C ends it)"))
    return Output({"folder": store.parent, "report": page}, [f"The page: {page}"])


def _run(study: Study, engine: Engine, also: Sequence[str]) -> Output:
    from ..studies.check import InvalidStudy, check_names, invalid_values
    from ..studies.run import run as run_study
    from ..studies.selection import previewed_cells

    with usage_errors(InvalidStudy):
        if study.engine.name == "ray":  # a driver of Ray in Python needs no torch, and checks no names
            with invalid_values():
                planned = previewed_cells(study)
            check_names(study, planned, also)
        result = run_study(
            study,
            progress=engine.progress,
            again=engine.again,
            also=also,
            trust=engine.trust,
            announce=lambda text: complain(f"{text}."),
        )
    if study.part is not None:
        shown = f"{result.done} of {result.planned} cells of this part are done in {study.folder}"
        shown += "; `study run` without --part takes them in when no part is running"
        return Output(result.to_dict(), [shown], error_lines("study", result), exit_code(result))
    if not result.stopped and result.done:
        result = replace(result, report=_page(study, None, result.findings))
    return output_of(study, result)


def _page(study: Study, out: str | None, findings: Findings, stored: Table | None = None) -> Path:
    from ..studies.report import write

    return write(study.store, Path(out) if out is not None else study.folder / PAGE, findings, stored=stored)


def _dry(study: Study, engine: Engine) -> Output:
    from ..studies.check import InvalidStudy, check_names, check_study
    from ..studies.design import design_words
    from ..studies.pictures import open_pictures
    from ..studies.pool import Pool
    from ..studies.run import Planned
    from ..studies.selection import tuned_settings

    with usage_errors(InvalidStudy):
        before = Planned.of(study, again=engine.again)
    planned, tasks = before.cells, before.tasks
    with usage_errors(InvalidStudy):
        remote = study.engine.name == "ray"
        if remote:
            check_names(study, planned)
        rows = check_study(study, planned, [task.cell for task in tasks], trust=engine.trust, remote=remote)
    with usage_errors():
        words = design_words(study, planned, before.table, rows, tuned_settings(study))
    design = [f"{text.rstrip('.')}." for text in words]
    pictures = open_pictures(study, planned, Pool.of(study, planned, before.table), before.notes, engine.again)
    listed = [{"key": t.cell.key, "name": t.cell.name, "measures": list(t.measures)} for t in tasks]
    shown: list[Any] = []
    if len({tuple(t.measures) for t in tasks}) > 1:
        cells = ((t.cell.key, t.cell.name, ", ".join(t.measures)) for t in tasks)
        shown += [table(("cell", "run", "measures"), cells, fold=("run", "measures")), ""]
    elif tasks:
        shown += [table(("cell", "run"), ((t.cell.key, t.cell.name) for t in tasks), fold=("run",)), ""]
        shown += [f"Measures of each run: {', '.join(tasks[0].measures) or 'none'}."]
    drawn = f", and {len(pictures)} pictures to draw" if pictures and not tasks else ""  # open tasks decide which runs
    end = f"Dry run: {len(tasks)} of {len(planned)} cells to compute{drawn}, in {study.folder}."
    data = {"folder": study.folder, "cells": listed, "planned": len(planned), "design": design}
    return Output(data, [*shown, *design, end])
