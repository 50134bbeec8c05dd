"""Running a study: compute the missing cells with an engine, store the outcomes, and summarise them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.digests import unpacked_bits
from .._util.files import FolderLocked, is_locked, lock_folder
from .._util.terminal import bar, line, say, style
from ..training.stopping import StopRequest, stop_signals
from .cell import CORRUPTED_ROWS, Cell, Disagreement, Outcome, Task, as_stored
from .check import check_study, invalid_values
from .design import unpaired
from .pictures import open_pictures
from .plan import STORE, TARGETS, TEXTS, Study, measures_in
from .pool import Pool
from .protocol import Rule
from .result import StudyResult, study_result
from .selection import choices, planned_cells, previewed_cells, selection_words, tuned_settings
from .store import Store
from .summary import summaries
from .table import Run, Table

if TYPE_CHECKING:
    from .engines.engine import Engine

LOCK = "study"
ADDED = "added measures"  # a note in the store: measures beside those in the file
ABOUT = "study"  # a note in the store: the study as it last ran

Update = Callable[[str, str], None]  # called with a cell's name and its state: running, done or failed


def run(
    study: Study,
    engine: Engine | None = None,
    *,
    progress: bool | None = None,
    again: bool = False,
    also: Sequence[str] = (),
    trust: bool = False,
    announce: Callable[[str], object] = lambda text: None,
) -> StudyResult:
    """Compute what is missing of a study, store it, and return the results.

    Stored records stay: after an interruption the same call resumes, and only new cells of a grid are computed.

    Parameters
    ----------
    study : Study
        The plan.
    engine : Engine, optional
        Where cells are computed; defaults to `study.engine`.
    progress : bool, optional
        True for a bar on a terminal or lines elsewhere, False for nothing; defaults to the bar on a terminal only.
    again : bool
        Also compute cells that failed before.
    also : sequence of str
        More measures, which are kept with the study.
    trust : bool
        Import whatever code run folders of the pool name as their model, not only the `model` in the study's base.
    announce : callable
        Called with what the design cannot show, before the first run trains.

    Returns
    -------
    StudyResult

    """
    with invalid_values():
        also = measures_in(list(also))
    before = Planned.of(study, also, again)
    remote = getattr(engine, "remote", study.engine.name == "ray")
    check_study(study, before.cells, [task.cell for task in before.tasks], also, trust=trust, remote=remote)
    if before.tasks:
        with invalid_values():
            words = unpaired(study, before.cells, tuned_settings(study))
        for text in words:
            announce(text)
    with ExitStack() as stack:
        stack.enter_context(claimed(study.folder))
        store = stack.enter_context(Store.open(study.store))
        stop_request = stack.enter_context(stop_signals())
        store.release()  # claims of a driver that ended: its workers ended with it
        stopped, stages = "", 1 if study.select is None else 2
        failed: dict[str, str] = {}  # also of finished cells to which a measure or a picture was to be added
        for stage in range(stages):
            table = store.table()
            planned = planned_cells(study, table)
            stored = {run.key for run in table.runs}
            store.add(as_stored(c) for c in planned if c.key not in stored)
            _note(store, study, planned, also)
            tasks = open_tasks(study, planned, table, measures_of(study, store.notes()), again and not stage)
            if tasks and not stopped:
                engine = engine or _engine(study)
                with show_progress(len(planned), len(planned) - len(tasks), progress) as update:
                    stopped = _compute(store, tasks, engine, stop_request, update, failed)
            if tasks:
                table = store.table()
        pool = Pool.of(study, planned, table)  # all are measured: the best run is now known
        pictures = open_pictures(study, planned, pool, store.notes(), again) if not stopped else []
        if pictures:
            with show_progress(len(pictures), 0, progress, "pictures") as update:
                stopped = _compute(store, pictures, engine or _engine(study), stop_request, update, failed)
        result = result_of(study, planned, store, table)
    return replace(result, stopped=stopped, failures={**result.failures, **failed})


def result_of(study: Study, planned: Sequence[Cell], store: Store, table: Table | None = None) -> StudyResult:
    """Summarise what a store holds of a study: findings, selection and tables; `table` has its runs, if it is read."""
    table = store.table() if table is None else table
    # a study that was read from its note has no `select`, and its note says what was tuned
    tuned = tuned_settings(study) or (store.notes().get(ABOUT) or {}).get("tuned", ())
    result = study_result(study, planned, table, tuned)
    words = selection_words(study, choices(study, table))
    tables = summaries(study, planned, table, store.curves, result.findings)
    return replace(result, words=[*result.words, *words], tables=tables)


def renote(study: Study, planned: Sequence[Cell]) -> None:
    """Update the study's note in its store: other groups and rules need no computation."""
    with Store.join(study.store) as store:
        _note(store, study, planned, ())


def look(study: Study) -> tuple[list[Cell], Table]:
    """The cells of a study and its stored runs, without computing anything."""
    with Store.reading(study.store) as store:
        table = store.table()
    return planned_cells(study, table), table


def study_in(folder: Path) -> tuple[Study, list[Cell], Table]:
    """The study in a folder from its note, its cells, and its stored runs. It can be reported, not run."""
    with Store.reading(store_in(folder)) as store:
        about, table = store.notes().get(ABOUT), store.table()
    if about is None:
        raise ValueError(f"{folder / STORE} does not describe its study: give the study's YAML file")
    study, planned = described(about, table, folder)
    return study, planned, table


def described(about: Mapping[str, Any], table: Table, folder: Path) -> tuple[Study, list[Cell]]:
    """The study and the cells that a note describes."""
    values: dict[str, Any] = {name: tuple(about.get(name) or ()) for name in ("measures", "targets", "groups")}
    values |= {name: str(about.get(name) or "") for name in TEXTS}
    values |= {name: about[name] for name in ("compare", "reference") if name in about}
    rules = tuple(map(Rule.of, about.get("admission") or ()))
    study = Study(about.get("name") or folder.name, **values, admission=rules, out=str(folder))
    configs = {run.key: run.config for run in table.runs}
    cells = []
    for key, name, of_groups, *more in about.get("cells") or ():
        groups = dict(zip(study.groups, of_groups, strict=True))
        if not more:  # an earlier note lists the keys of final runs
            stage = "" if "final" not in about else "final" if key in about["final"] else "sweep"
            more = ["", stage, stage != "sweep"]
        contender, stage, predicts = more
        config = configs.get(key, {})
        cells.append(Cell(key, name, config, groups, stage=stage, contender=contender, predicts=predicts))
    return study, cells


def store_in(folder: Path) -> Path:
    """The store in a study's folder; without one, raises FileNotFoundError with what the folder is instead."""
    if (folder / STORE).exists():
        return folder / STORE
    hint = folder_hint(folder) or "`steppe study run` makes one"
    raise FileNotFoundError(f"there is no study in {folder}: it has no {STORE}. {hint}")


def folder_hint(folder: Path) -> str:
    """What a folder without a study holds, and what to do with it; empty if it holds nothing of use."""
    if (folder / "run.yaml").exists():
        return f"It is the folder of one run: `pool: {folder.parent}/*` in a study's file takes such folders"
    studies = sorted(str(store.parent) for store in folder.glob(f"*/{STORE}"))
    if studies:
        return f"It holds the folders of studies: {', '.join(studies)}. Give one of them"
    files = sorted(str(file) for file in folder.glob("*.yaml"))
    return f"Give a study's file: {', '.join(files)}" if files else ""


def file_of(folder: Path) -> Path | None:
    """The YAML file that the study in a folder was last run from, if it is recorded and still there."""
    with Store.reading(store_in(folder)) as store:
        about = store.notes().get(ABOUT) or {}
    file = Path(os.path.relpath(folder / str(about["file"]))) if about.get("file") else None
    return file if file is not None and file.is_file() else None


def measures_of(study: Study, notes: Mapping[str, Any], also: Sequence[str] = ()) -> list[str]:
    """The measures in the study's file, and those added since."""
    return list(dict.fromkeys([*study.measures, *notes.get(ADDED, []), *also]))


@dataclass(frozen=True)
class Planned:
    """What a study has and lacks before it runs: its cells, what its store holds of them, and the open tasks."""

    cells: Sequence[Cell]
    table: Table
    notes: Mapping[str, Any]
    tasks: Sequence[Task]

    @classmethod
    def of(cls, study: Study, also: Sequence[str] = (), again: bool = False) -> Planned:
        """Read the store, if there is one; some configuration stands for each winner that is not known yet.

        Raises `InvalidStudy` for a plan that no run can follow.
        """
        table, notes = Table([]), {}
        if study.store.exists():
            with Store.reading(study.store) as store:
                table, notes = store.table(), store.notes()
        with invalid_values():
            cells = previewed_cells(study, table)
        return cls(cells, table, notes, open_tasks(study, cells, table, measures_of(study, notes, also), again))


def open_tasks(
    study: Study, planned: Sequence[Cell], table: Table, measures: Sequence[str], again: bool = False
) -> list[Task]:
    """The tasks that a table of stored runs lacks."""
    stored = {run.key: run for run in table.runs}
    needed = [*study.targets, *(rule.name for rule in study.admission if rule.name in TARGETS)]
    tasks = []
    for cell in planned:
        run = stored.get(cell.key, Run(cell.key, cell.name, cell.config, cell.groups, "open"))
        if run.state == "failed" and not again:
            continue
        cell.check_known(run.targets)
        needed_measures = measures if cell.predicts else ()  # selection needs validation rows only
        missing = [m for m in needed_measures if m not in run.measures and (again or m not in run.failures)]
        unfinished = run.state != "done" or any(t not in run.targets for t in (*cell.known, *study.ood_targets))
        if missing or unfinished:
            names = [*needed, *(t for t in cell.known if t in TARGETS), *study.ood_targets] if unfinished else []
            targets = [t for t in dict.fromkeys(names) if t not in run.targets]
            every = study.measure_every if needed_measures else None
            along = study.measures if every is not None else ()
            folder = study.run_folder(cell.key)
            tasks.append(Task(cell, folder, missing, targets, ood=study.ood, along=along, measure_every=every))
    return tasks


def _compute(
    store: Store,
    tasks: Sequence[Task],
    engine: Engine,
    stop_request: StopRequest,
    update: Update,
    failed: dict[str, str],
) -> str:
    """Compute tasks, store their outcomes, and add errors by name; returns why it ended early, or an empty text."""
    by_key = {task.cell.key: task.cell for task in tasks}
    driver = f"process {os.getpid()} on {socket.gethostname()}"

    def begun(task: Task) -> None:
        if store.claim(task.cell.key, driver):
            update(task.cell.name, "running")

    try:
        for outcome in engine.outcomes(tasks, stop_request, begun):
            if outcome.state == "stopped":
                return stop_request.why or outcome.error
            if outcome.ends:
                raise Disagreement(outcome.error)
            record(store, outcome, by_key[outcome.key].known)
            update(by_key[outcome.key].name, outcome.state)
            if outcome.state == "failed":
                failed[by_key[outcome.key].name] = outcome.error
    finally:
        store.release()
    return stop_request.why


@contextmanager
def show_progress(total: int, done: int, progress: bool | None, what: str = "cells") -> Iterator[Update]:
    """Show a bar on a terminal; elsewhere one line per cell if `progress` is True, and otherwise nothing."""
    counts = {"done": done, "failed": 0}
    running: set[str] = set()  # by name: a cell whose worker was lost starts again
    shown = style(progress)

    def summary() -> str:
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        return f"{counts['done']} of {total} done{failed}, {len(running)} running"

    with bar("now", "elapsed", "left", "remaining") if shown == "bars" else nullcontext() as bars:
        task = bars.add_task(what, total=total - done, now=summary()) if bars is not None else None

        def update(name: str, state: str) -> None:
            if state == "running":
                running.add(name)
            else:
                running.discard(name)
                counts[state] += 1
            if bars is not None and task is not None:
                bars.update(task, completed=sum(counts.values()) - done, now=summary())
            elif shown == "lines" and state != "running":
                noun = "" if what == "cells" else f" {what}"
                say(f"{sum(counts.values())} of {total}{noun}: {line(name)} {state}", error=True)

        yield update


def record(store: Store, outcome: Outcome, known: Mapping[str, float]) -> None:
    """Store an outcome; targets of the user's table take precedence."""
    if outcome.state == "failed":
        store.fail(outcome.key, outcome.error)
        return
    _check_same_rows(store, outcome)
    store.record(
        outcome.key,
        targets={**outcome.targets, **known},
        target_errors={k: v for k, v in outcome.target_errors.items() if k not in known},
        measures=outcome.measures,
        meta=outcome.meta,
        failures=outcome.failures,
        curves=outcome.curves,
        versions=outcome.versions,
        rows=unpacked_bits(outcome.correct["test"]) if "test" in outcome.correct else None,
    )
    for name, value in outcome.pictures.items():
        store.note(name, value)


def _check_same_rows(store: Store, outcome: Outcome) -> None:
    """Raise if errors on corrupted rows of this cell and of stored ones are of different images."""
    sources = {name: source for name, source in outcome.versions.items() if name.startswith(CORRUPTED_ROWS)}
    for name, source in sources.items():
        if others := {versions.get(name, source) for versions in store.versions()} - {source}:
            raise Disagreement(
                f"{name.removeprefix(CORRUPTED_ROWS)}: this run was tested on {source} corruptions, earlier ones on "
                f"{', '.join(others)}: put the official files back as they were, or start in another folder"
            )


def _note(store: Store, study: Study, planned: Sequence[Cell], also: Sequence[str]) -> None:
    """Store a description of the study for readers of the store alone."""
    notes = store.notes()
    added = list(dict.fromkeys([*notes.get(ADDED, []), *(m for m in also if m not in study.measures)]))
    if added != notes.get(ADDED, []):
        store.note(ADDED, added)
    about = {
        "name": study.name,
        **{name: text for name in TEXTS if (text := getattr(study, name))},
        "file": os.path.relpath(study.file, study.folder) if study.file else None,
        "measures": [*study.measures, *added],
        "targets": list(study.targets),
        "groups": list(study.groups),
        **({"compare": study.compare} if study.compare != "method" else {}),
        **({"reference": study.reference} if study.reference is not None else {}),
        "admission": [str(rule) for rule in study.admission],
        "show": study.show.words(),
        "tuned": tuned_settings(study),
        # lists, because a store sorts mappings by name; `described` reads them
        "cells": [
            [c.key, c.name, [c.groups.get(name) for name in study.groups], c.contender, c.stage, c.predicts]
            for c in planned
        ],
    }
    if about != notes.get(ABOUT):
        store.note(ABOUT, about)


def _engine(study: Study) -> Engine:
    from .engines.engine import engine_of

    return engine_of(study.engine, study.base.get("device"))


def being_run(study: Study) -> bool:
    """Whether a process is running the study; without one, cells that a store calls running are open."""
    return is_locked(study.folder, LOCK)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock the study's folder for this process; raises RuntimeError with the name of the holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(folder, LOCK, patience=1.0))  # `being_run` may hold the lock for a moment
        except FolderLocked as holder:
            raise RuntimeError(f"the study in {folder} is being run by {holder}: wait for it, or stop it") from None
        yield
