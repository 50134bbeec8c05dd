"""Running a study: computing the cells that are missing, wherever, and saying what all of them say."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.files import FolderLocked, is_locked, lock_folder
from ..training.stopping import Wish, listening
from .cell import Cell, Disagreement, Outcome, Task, cells, kept
from .finding import Finding, admitted, finding, of_plan
from .pictures import open_pictures
from .plan import TARGETS, Study
from .pool import refuse_untrusted
from .preflight import refuse_missing, refuse_wrong
from .store import Store
from .table import Run, Table
from .watch import Watch, watching

if TYPE_CHECKING:
    from .engines.engine import Engine

NAME = "study"  # of its lock
ADDED = "added measures"  # a note in the store: measures that were asked for beside those in the file
ABOUT = "study"  # a note in the store: what the study was when it last ran


def run(
    study: Study,
    engine: Engine | None = None,
    *,
    progress: bool | None = None,
    again: bool = False,
    also: Sequence[str] = (),
    trust: bool = False,
) -> Finding:
    """Computes what is missing of a study, keeps it in the study's store, and returns what it says.

    What is there already stays: after an interruption the same call goes on, and cells that are new in the grid are
    computed alone. `again`: also cells that failed before. `also`: more measures, which stay with the study.
    `trust`: folders of the pool may name any code as their model; otherwise only the `model` in the study's base.
    """
    planned = cells(study)
    refuse_untrusted(study, planned, trust)
    remote = getattr(engine, "remote", study.engine.name == "ray")  # nodes have data of their own, a driver no torch
    if not remote:
        refuse_wrong(study, planned, also)
        refuse_missing([task.cell for task in still_open(study, planned, also, again)])
    with ExitStack() as stack:
        stack.enter_context(claimed(study.folder))
        store = stack.enter_context(Store.open(study.store))
        wish = stack.enter_context(listening())
        store.release()  # claims of a driver that is gone: its workers end with it
        states = store.states()
        store.add(kept(c) for c in planned if c.key not in states)
        _note(store, study, planned, also)
        tasks = open_tasks(study, planned, store.table(), measures_of(study, store), again)
        stopped = ""
        if tasks:
            engine = engine or _engine(study)
            with watching(len(planned), len(planned) - len(tasks), progress) as watch:
                stopped = _compute(store, tasks, engine, wish, watch)
        table = store.table()
        counted = admitted(study, of_plan(study, planned, table))  # of all of which the best one is now known
        pictures = open_pictures(study, planned, counted, store.notes(), again) if not stopped else []
        if pictures:
            with watching(len(pictures), 0, progress, "pictures") as watch:
                stopped = _compute(store, pictures, engine or _engine(study), wish, watch)
    return replace(finding(study, planned, table), stopped=stopped)


def renote(study: Study) -> None:
    """Tells the store of a study what the study is now: other groups and rules want nothing computed."""
    planned = cells(study)
    with Store.join(study.store) as store:
        _note(store, study, planned, ())


def look(study: Study) -> tuple[list[Cell], Table]:
    """The cells of a study and what its store has of them, without computing anything."""
    with Store.reading(study.store) as store:
        return cells(study), store.table()


def measures_of(study: Study, store: Store) -> list[str]:
    """The measures in the study's file, and those that were added since."""
    return list(dict.fromkeys([*study.measures, *store.notes().get(ADDED, [])]))


def still_open(study: Study, planned: Sequence[Cell], also: Sequence[str] = (), again: bool = False) -> list[Task]:
    """What is left to compute, as the store has it; all, where there is none yet."""
    if not study.store.exists():
        return open_tasks(study, planned, Table([]), [*study.measures, *also], again)
    with Store.reading(study.store) as store:
        return open_tasks(study, planned, store.table(), [*measures_of(study, store), *also], again)


def open_tasks(
    study: Study, planned: Sequence[Cell], table: Table, measures: Sequence[str], again: bool = False
) -> list[Task]:
    """What is left to compute."""
    have = {run.key: run for run in table.runs}
    wanted = [*study.targets, *(rule.name for rule in study.admission if rule.name in TARGETS)]
    tasks = []
    for cell in planned:
        run = have.get(cell.key, Run(cell.key, cell.name, cell.config, cell.groups, "open"))
        if run.state == "failed" and not again:
            continue
        cell.refuse_disagreement(run.targets)
        lacking = [m for m in measures if m not in run.measures and (again or m not in run.failures)]
        unsaid = [t for t in cell.known if t not in run.targets]
        open_ = [*wanted, *(t for t in cell.known if t in TARGETS)] if run.state != "done" or unsaid else []
        targets = [t for t in dict.fromkeys(open_) if t not in run.targets]
        if lacking or unsaid or run.state != "done":
            tasks.append(Task(cell, study.run_folder(cell.key), lacking, targets))
    return tasks


def _compute(store: Store, tasks: Sequence[Task], engine: Engine, wish: Wish, watch: Watch) -> str:
    """Has the tasks computed and keeps what comes of them; returns why it ended early, if it did."""
    by_key = {task.cell.key: task.cell for task in tasks}
    driver = f"process {os.getpid()} on {socket.gethostname()}"

    def begun(task: Task) -> None:
        if store.claim(task.cell.key, driver):
            watch(task.cell.name, "running")

    try:
        for outcome in engine.outcomes(tasks, wish, begun):
            if outcome.state == "stopped":
                return wish.why or outcome.error
            if outcome.ends:
                raise Disagreement(outcome.error)
            _keep(store, by_key[outcome.key], outcome)
            watch(by_key[outcome.key].name, outcome.state)
    finally:
        store.release()
    return wish.why


def _keep(store: Store, cell: Cell, outcome: Outcome) -> None:
    if outcome.state == "failed":
        store.fail(outcome.key, outcome.error)
        return
    store.record(
        outcome.key,
        targets={**outcome.targets, **cell.known},  # what people say of their own checkpoints goes before
        target_errors={k: v for k, v in outcome.target_errors.items() if k not in cell.known},
        measures=outcome.measures,
        meta=outcome.meta,
        failures=outcome.failures,
        curves=outcome.curves,
        versions=outcome.versions,
    )
    for name, value in outcome.pictures.items():
        store.note(name, value)


def _note(store: Store, study: Study, planned: Sequence[Cell], also: Sequence[str]) -> None:
    """Keeps with the store what the study is, for whoever reads the store alone."""
    notes = store.notes()
    added = list(dict.fromkeys([*notes.get(ADDED, []), *(m for m in also if m not in study.measures)]))
    if added != notes.get(ADDED, []):
        store.note(ADDED, added)
    about = {
        "name": study.name,
        "measures": [*study.measures, *added],
        "targets": list(study.targets),
        "groups": list(study.groups),
        "admission": [str(rule) for rule in study.admission],
        "show": study.show.words(),
        # a list, and groups by their place in it: a store sorts what has names
        "cells": [[cell.key, cell.name, [cell.groups.get(name) for name in study.groups]] for cell in planned],
    }
    if about != notes.get(ABOUT):
        store.note(ABOUT, about)


def _engine(study: Study) -> Engine:
    from .engines.named import engine_of

    return engine_of(study.engine, study.base.get("device"))


def being_run(study: Study) -> bool:
    """Whether a process is running the study; cells that a store calls running are open where none is."""
    return is_locked(study.folder, NAME)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The study for this process alone; a second one is told who has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(
                lock_folder(folder, NAME, patience=1.0)
            )  # somebody may just be looking whether it is held
        except FolderLocked as who:
            raise RuntimeError(f"the study in {folder} is being run by {who}: wait for it, or stop it") from None
        yield
