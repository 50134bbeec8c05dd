"""`steppe reproduce`: a table or figure of a paper as one command, our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.extend import (
    Engine,
    Output,
    UsageError,
    command,
    error_lines,
    exit_code,
    from_json,
    shown_tables,
    table,
    usage_errors,
    with_flags,
)

from ..recipes.recipe import BUDGETS, Budget, Recipe, recipe
from . import theory

if TYPE_CHECKING:
    from steppe.studies import Study, StudyResult


@dataclass(frozen=True)
class Which:
    """Which recipe, and how much of it."""

    name: str | None = field(default=None, metadata={"metavar": "NAME", "nargs": "?"})
    """a recipe such as universal/table2, or a folder with study.yaml, paper.csv and notes.md"""
    budget: Budget = "smoke"
    """smoke: a few steps, to check that it runs; short: reduced as notes.md says; paper: the paper's protocol"""
    out: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """the recipe's folder, with one folder per budget in it; defaults to studies/NAME"""
    records: list[str] = field(default_factory=list, metadata={"metavar": "FILE,FILE"})
    """take over records of other machines: records.csv files, or folders that hold one"""
    report: bool = False
    """compute nothing: tables and pages from the records that are there, or else from those that come with the
    package, in the folder `committed`"""
    data_root: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """folder of the data sets; defaults to data"""
    dry_run: bool = False
    """print cells, passes and projected hours, and stop"""


@dataclass(frozen=True)
class Listing:
    """Whether to list recipes."""

    list: bool = False
    """list all recipes with their state, from records.csv in the folders of their budgets"""


@command("reproduce")
def reproduce(which: Which, engine: Engine, listing: Listing) -> Output:
    """Run a table or figure of a paper, and print our numbers beside the paper's.

    Examples
    --------
    steppe reproduce --list
    steppe reproduce universal/table2 --budget short --dry-run
    steppe reproduce universal/table2 --budget paper --workers 4
    steppe reproduce universal/table2 --budget paper --records other/records.csv --report

    """
    if listing.list or which.name is None:
        return _listed(which)
    if (in_theory := _name_in_theory(which.name)) is not None:
        if which.report:
            return _recorded(which.name, in_theory)
        out = which.out or f"studies/{which.name}"
        return theory.theory(theory.Which(in_theory, out, quick=which.budget == "smoke"))
    with usage_errors():
        chosen = recipe(which.name)
        if which.budget not in chosen.content.get("budgets", {}):
            raise UsageError(
                f"{chosen.name} has no budget {which.budget}: it has {', '.join(chosen.content['budgets'])}"
            )
        study = with_flags(chosen.study(which.budget, which.out), engine)
    if which.data_root is not None:
        study = replace(study, base={**study.base, "data_root": which.data_root})
    records = which.records
    if which.report and not records and not study.store.exists():
        from ..tables.states import COMMITTED

        if (kept := COMMITTED / chosen.name / which.budget / "records.csv").is_file():
            # apart from what is computed here, which must not go on from them
            study, records = replace(study, out=str(study.folder.parent / "committed")), [str(kept)]
    if which.report:
        study = _as_recorded(study, records)
    imported = _import(study, records)
    if which.dry_run:
        return _dry(study)
    if which.report:
        return _output(chosen, study, _stored(study), imported)
    from steppe.studies.check import InvalidStudy
    from steppe.studies.run import run

    with usage_errors(InvalidStudy):
        result = run(study, progress=engine.progress, again=engine.again, trust=engine.trust)
    return _output(chosen, study, result, imported)


def _stored(study: Study) -> StudyResult:
    from steppe.studies.records import stored_result

    if not study.store.exists():
        raise FileNotFoundError(
            f"there are no records in {study.folder}: run it without --report, or give --records records.csv"
        )
    return stored_result(study)


def _as_recorded(study: Study, files: Sequence[str]) -> Study:
    """The study with the initial weights that its records, and those in files, started from."""
    from steppe.studies.records import origins, read_records, with_recorded_weights

    of_files = (from_json(row["origin"], ", ".join(files)) for row in read_records(files).values())
    return with_recorded_weights(study, [*of_files, *(origins(study) if study.store.exists() else ())])


def _recorded(name: str, study: str) -> Output:
    """The sentences and numbers of a study of `steppe theory` that are recorded, here or with the package."""
    from ..tables.states import ROOTS

    files = [file for root in ROOTS if (file := root / name / f"{study}.json").is_file()]
    if not files:
        raise FileNotFoundError(f"there is no record of {name}: run it without --report")
    data = from_json(files[0].read_text(encoding="utf-8"), str(files[0]))
    return Output(data, [*data["words"], str(files[0])])


def _import(study: Study, files: Sequence[str]) -> list[str]:
    if not files:
        return []
    from steppe.studies.records import import_records, read_records

    new, other = import_records(study, read_records(files))
    words = [f"{new} records taken over from {', '.join(files)}."]
    return words + ([f"{other} records are of other runs than this budget's."] if other else [])


def _output(chosen: Recipe, study: Study, result: StudyResult, imported: Sequence[str]) -> Output:
    from steppe.studies.compared import compare
    from steppe.studies.records import origins, write_records
    from steppe.studies.report import write

    from ..tables.pages import write_files

    title = f"{study.title or chosen.name} ({chosen.name}, {study.budget})"
    tables = compare(result.tables, chosen.printed)
    files, words = [write_records(study)], [*result.words, *_machines(origins(study))]
    files += write_files(study.folder, title, tables, words, chosen.notes)
    if result.done:
        files.append(write(study.store, study.folder / "report.html", result.findings))
    shown: list[Any] = [title, "", *shown_tables(tables), *imported, *words, "", *map(str, files)]
    data = {
        "name": chosen.name, "budget": study.budget, "folder": study.folder, "planned": result.planned,
        "done": result.done, "failures": result.failures, "words": result.words, "stopped": result.stopped,
        "tables": {t.ours.spec.name: t.records() for t in tables}, "files": files,
    }  # fmt: skip
    return Output(data, shown, error_lines("reproduce", result), exit_code(result))


def _machines(origins: Any) -> list[str]:
    """Machines and days of all records, in one sentence."""
    machines = sorted({f"{o.get('device', '?')} (torch {o.get('torch', '?')})" for o in origins})
    days = sorted({o["date"] for o in origins if "date" in o})
    when = f", {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}" if days else ""
    return [f"Computed on {', '.join(machines)}{when}."] if machines else []


def _dry(study: Study) -> Output:
    from steppe.studies.projection import project

    with usage_errors():
        projection = project(study)
    heads = ("stage", "cells", "open", "passes", "hours")
    cells = ((s.name, s.cells, s.open, f"{s.passes:,.0f}", f"{s.hours:.3g}") for s in projection.stages)
    words = [*projection.basis, f"Nothing was computed in {study.folder}."]
    return Output(projection.to_dict(), [table(heads, cells, right=heads[1:]), "", *words])


def _name_in_theory(name: str) -> str | None:
    """The study of `steppe theory` that a name is, as theory/NAME or as a figure of a paper."""
    from ..figures.registry import NAMED
    from ..tables.states import THEORY

    if name.startswith(THEORY):
        return name.removeprefix(THEORY)
    return next((study for study, entry in NAMED.items() if entry.recipe == name), None)


def _listed(which: Which) -> Output:
    from ..tables.states import ROOTS, states

    rows = [state.to_dict() for state in states(ROOTS if which.out is None else [Path(which.out)])]
    # "full, in part" and 9 of 24 runs: the numbers say it
    done = (", ".join(filter(None, (row["state"].removesuffix(", in part"), row["cells"]))) for row in rows)
    cells = ((row["name"], row["title"], state, row["date"]) for row, state in zip(rows, done, strict=True))
    shown = table(("recipe", "shows", "state", "date"), cells, fold=("shows",), drop=("date",))
    return Output(rows, [shown, f"steppe reproduce NAME --budget {'|'.join(BUDGETS)} runs one."])
