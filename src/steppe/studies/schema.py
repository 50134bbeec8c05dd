"""The SQLite file of a study: tables, values as columns, a digest per row, and the checks when it is opened.

The file is in write-ahead mode: several processes of one machine write at a time and wait for one another, and a killed
process loses only its open transaction. (A network file system does not support this: let one process write there.)
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any

from .._util.digests import digest
from .._util.files import check_no_link
from .._util.formats import json_safe

APPLICATION = 0x53544550  # "STEP" in SQLite's header: the file's owner
LAYOUT = 2  # of the tables below; increases when an older steppe can no longer read them
PATIENCE = 60.0  # seconds to wait for other writers, each of which takes milliseconds
_MAGIC = b"SQLite format 3\x00"

# per table whose rows are never changed, its columns; those that name a row come first
COLUMNS = {
    "cells": ("key", "name", "config", "groups", "at"),
    "origins": ("versions",),
    "outcomes": (
        "cell", "role", "name", "value", "stderr", "n", "kind", "cost", "seconds", "note", "complete", "origin", "at",
    ),
    "failures": ("cell", "name", "error", "at"),
    "finished": ("cell", "at"),
    "curves": ("cell", "epoch", "record"),
    "notes": ("name", "value", "at"),
}  # fmt: skip
DIGEST = "digest TEXT NOT NULL DEFAULT ''"  # a row that is cut short has the default, which is no digest

_TABLES = f"""
CREATE TABLE cells (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL, config TEXT NOT NULL,
    groups TEXT NOT NULL, at TEXT NOT NULL, {DIGEST});
CREATE TABLE origins (id INTEGER PRIMARY KEY, versions TEXT NOT NULL UNIQUE, {DIGEST});
CREATE TABLE outcomes (cell INTEGER NOT NULL REFERENCES cells (id), name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('target', 'measure', 'meta')), value REAL, stderr REAL, n INTEGER NOT NULL,
    kind TEXT NOT NULL, cost TEXT NOT NULL, seconds REAL, note TEXT NOT NULL, complete INTEGER NOT NULL,
    origin INTEGER NOT NULL REFERENCES origins (id), at TEXT NOT NULL, {DIGEST},
    PRIMARY KEY (cell, role, name)) WITHOUT ROWID;
CREATE TABLE failures (id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cells (id), name TEXT NOT NULL,
    error TEXT NOT NULL, at TEXT NOT NULL, {DIGEST});
CREATE TABLE finished (cell INTEGER PRIMARY KEY REFERENCES cells (id), at TEXT NOT NULL, {DIGEST});
CREATE TABLE curves (cell INTEGER NOT NULL REFERENCES cells (id), epoch INTEGER NOT NULL, record TEXT NOT NULL,
    {DIGEST}, PRIMARY KEY (cell, epoch)) WITHOUT ROWID;
CREATE TABLE notes (id INTEGER PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL,
    {DIGEST});
CREATE TABLE claims (cell INTEGER PRIMARY KEY REFERENCES cells (id), worker TEXT NOT NULL, since REAL NOT NULL);
"""
# claims come and go; records are never changed
_TRIGGERS = "".join(
    f"CREATE TRIGGER {table}_{what.lower()} BEFORE {what} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'records of a study are never changed'); END;\n"
    for table in COLUMNS
    for what in ("UPDATE", "DELETE")
)


def create(path: Path) -> None:
    """Make an empty store unless there is one; of several processes that try at once, one succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(fresh, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")  # stays with the file
            marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {LAYOUT};"
            db.executescript(f"BEGIN;\n{_TABLES}{_TRIGGERS}{marks}\nCOMMIT;")
        with suppress(FileExistsError):  # another process was first
            os.link(fresh, path)  # unlike a rename, never replaces a store that another process made meanwhile
    finally:
        for left in (fresh, *(fresh.with_name(fresh.name + end) for end in ("-wal", "-shm"))):
            left.unlink(missing_ok=True)


def connect(path: Path, *, reading: bool, whole: bool = True) -> sqlite3.Connection:
    """Connect to an existing store, and read all of it if `whole`; raises for anything else, and for damage."""
    if not reading:
        check_no_link(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no store at {path}: `steppe study run` makes one")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and a store is a file: give the file in it")
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if head != _MAGIC:
        what = "is empty" if not head else "is no SQLite file"
        raise ValueError(f"{path} {what}, so it is no store of a study: give another path, or move the file away")
    with explained(path), ExitStack() as stack:
        db = stack.enter_context(closing(_open_for_reading(path) if reading else _open(str(path))))
        owner, layout = (int(db.execute(f"PRAGMA {mark}").fetchone()[0]) for mark in ("application_id", "user_version"))
        if owner != APPLICATION:
            raise ValueError(f"{path} is an SQLite file of another program, no store of a study: give another path")
        if layout != LAYOUT:
            newer = "a newer" if layout > LAYOUT else "an older"
            raise ValueError(f"{path} was written by {newer} steppe (layout {layout}, not {LAYOUT}): use that one")
        db.execute("PRAGMA foreign_keys = ON")
        # in write-ahead mode a killed process loses nothing that was committed; a power cut may lose the last
        # moments, which are then computed again
        db.execute("PRAGMA query_only = ON" if reading else "PRAGMA synchronous = NORMAL")
        if whole:
            check(db, path)
        stack.pop_all()  # nothing failed: it stays open
    return db


def _open(name: str) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=PATIENCE, isolation_level=None, uri=name.startswith("file:"))


def _open_for_reading(path: Path) -> sqlite3.Connection:
    db = _open(f"{path.absolute().as_uri()}?mode=ro")
    try:
        db.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:  # readers write a little beside the file, which a read-only disk does not allow
        db.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        return _open(f"{path.absolute().as_uri()}?immutable=1")
    except BaseException:  # such as damage
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction; waits for other writers."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def row_digest(table: str, *values: Any) -> str:
    """The digest of a row's columns in their order, as SQLite returns them; 3 microseconds per row.

    Ids are not in it: SQLite's own check finds one that does not fit.
    """
    return digest([ascii((table, values))])[:16]


def insert(db: sqlite3.Connection, table: str, values: Sequence[Any], *, unless_there: bool = False) -> bool:
    """Add a row, with values in the order of `COLUMNS`; returns whether it is new."""
    either = "OR IGNORE " if unless_there else ""
    marks = ", ".join("?" * (len(values) + 1))
    query = f"INSERT {either}INTO {table} ({', '.join(COLUMNS[table])}, digest) VALUES ({marks})"
    return db.execute(query, (*values, row_digest(table, *values))).rowcount == 1


def check(db: sqlite3.Connection, path: Path) -> None:
    """Read the whole file, and raise if pages or rows are damaged."""
    with explained(path):
        problems = [row[0] for row in db.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
        problems += [f"a row of {row[0]} belongs to none of {row[2]}" for row in db.execute("PRAGMA foreign_key_check")]
        if not problems:
            problems = [*islice(_changed_rows(db), 1)]
    if problems:
        raise damaged(path, "; ".join(problems))


def _changed_rows(db: sqlite3.Connection) -> Iterator[str]:
    """Rows whose digest is wrong, in words."""
    for table, columns in COLUMNS.items():
        for *values, stored in db.execute(f"SELECT {', '.join(columns)}, digest FROM {table}"):
            if row_digest(table, *values) != stored:
                name = ", ".join(f"{c} {v!r:.80}" for c, v in zip(columns[:3], values, strict=False))
                yield f"the row of {table} with {name} does not have the digest that was written with it"


def damaged(path: Path, why: str) -> ValueError:
    """The error for a store that cannot be read."""
    return ValueError(
        f"the store {path} is damaged: {why}. Restore a copy, or move it away and run the study again: trained runs "
        "are kept in their folders, and only their measurements are computed again."
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise SQLite's errors with the file and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        message = str(error)
        if "locked" in message or "busy" in message:
            raise TimeoutError(
                f"{path} was locked by another process for {PATIENCE:g} s: is one of them stopped in a debugger, or "
                "is the file on a network disk?"
            ) from error
        if "no such" in message or "Could not decode" in message:  # tables are made whole: one has changed
            raise damaged(path, message) from error
        raise OSError(f"{path}: {error}. Is the disk full, or the folder read-only?") from error
    except sqlite3.IntegrityError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may contain the damaged text
        raise damaged(path, str(error)) from error


def columns_of(estimate: Any) -> tuple[Any, ...]:
    """An estimate, or a mapping like one, as the columns from value to complete."""
    e = asdict(estimate) if is_dataclass(estimate) and not isinstance(estimate, type) else estimate
    if not isinstance(e, Mapping) or "value" not in e:
        raise TypeError(f"a record has a value, and perhaps stderr, n, kind and cost; {estimate!r} has not")
    cost = dict(e.get("cost") or {})
    seconds = cost.pop("seconds", e.get("seconds"))  # in a column of its own: the rest is equal in many runs
    numbers = [_number(v) for v in (e["value"], e.get("stderr"), seconds)]
    head = (*numbers[:2], int(e.get("n", 1)), str(e.get("kind", "")), text_of(cost), numbers[2])
    return (*head, str(e.get("note", "")), int(e.get("complete", True)))


def _number(value: Any) -> float | None:
    return None if value is None or isnan(value) else float(value) + 0.0  # SQLite has no -0.0


def text_of(value: Any) -> str:
    """JSON that is equal for equal values; numbers that are not finite are null."""
    return json.dumps(json_safe(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def time_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
