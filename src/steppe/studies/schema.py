"""The file of a study: SQLite in write-ahead mode, with a mark that says whose it is; others are refused.

Many processes of one machine write at a time, and wait for one another. A process that is killed loses the transaction
that it was in, and nothing else. (A network file system cannot do this: there, let one process write for all.)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from .._util.files import refuse_link
from .rows import COLUMN, COLUMNS, add_digests, changed

APPLICATION = 0x53544550  # "STEP" in SQLite's header: whose file this is
LAYOUT = 2  # of the tables below; goes up when an older steppe could no longer read them
WITHOUT_DIGESTS = 1  # a layout that is still read, and brought up to this one by whoever writes
PATIENCE = 60.0  # seconds to wait for other writers, of which each takes milliseconds
_MAGIC = b"SQLite format 3\x00"

_TABLES = f"""
CREATE TABLE cells (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL, config TEXT NOT NULL,
    groups TEXT NOT NULL, at TEXT NOT NULL, {COLUMN});
CREATE TABLE origins (id INTEGER PRIMARY KEY, versions TEXT NOT NULL UNIQUE, {COLUMN});
CREATE TABLE outcomes (cell INTEGER NOT NULL REFERENCES cells (id), name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('target', 'measure', 'meta')), value REAL, stderr REAL, n INTEGER NOT NULL,
    kind TEXT NOT NULL, cost TEXT NOT NULL, seconds REAL, note TEXT NOT NULL, complete INTEGER NOT NULL,
    origin INTEGER NOT NULL REFERENCES origins (id), at TEXT NOT NULL, {COLUMN},
    PRIMARY KEY (cell, role, name)) WITHOUT ROWID;
CREATE TABLE failures (id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cells (id), name TEXT NOT NULL,
    error TEXT NOT NULL, at TEXT NOT NULL, {COLUMN});
CREATE TABLE finished (cell INTEGER PRIMARY KEY REFERENCES cells (id), at TEXT NOT NULL, {COLUMN});
CREATE TABLE curves (cell INTEGER NOT NULL REFERENCES cells (id), epoch INTEGER NOT NULL, record TEXT NOT NULL,
    {COLUMN}, PRIMARY KEY (cell, epoch)) WITHOUT ROWID;
CREATE TABLE notes (id INTEGER PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL,
    {COLUMN});
CREATE TABLE claims (cell INTEGER PRIMARY KEY REFERENCES cells (id), worker TEXT NOT NULL, since REAL NOT NULL);
"""
# claims come and go; what was found stays as it was written
_TRIGGERS = "".join(
    f"CREATE TRIGGER {table}_{what.lower()} BEFORE {what} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'records of a study are never changed'); END;\n"
    for table in COLUMNS
    for what in ("UPDATE", "DELETE")
)


def create(path: Path) -> None:
    """Makes an empty store unless there is one; several processes may try at once, and one does it, whole."""
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
            os.link(fresh, path)  # unlike a renaming, never takes the place of a store that has come up meanwhile
    finally:
        for left in (fresh, *(fresh.with_name(fresh.name + end) for end in ("-wal", "-shm"))):
            left.unlink(missing_ok=True)


def connect(path: Path, *, reading: bool) -> sqlite3.Connection:
    """A connection to a store that is there; anything else is refused, with what was found."""
    if not reading:
        refuse_link(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no store at {path}: `steppe study run` makes one")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and a store is a file: give the file in it")
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if head != _MAGIC:
        what = "is empty" if not head else "is no SQLite file"
        raise ValueError(f"{path} {what}, so it is no store of a study: give another path, or move the file away")
    with told(path):
        db = _opened(path, reading)
        try:
            _refuse_others(db, path)
            db.execute("PRAGMA foreign_keys = ON")
            # in write-ahead mode a killed process loses nothing that was committed; a power cut may lose the last
            # moments, which are then computed again
            db.execute("PRAGMA query_only = ON" if reading else "PRAGMA synchronous = NORMAL")
            if not reading and _layout(db) == WITHOUT_DIGESTS:
                _bring_up(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _opened(path: Path, reading: bool) -> sqlite3.Connection:
    if not reading:
        return sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE, isolation_level=None)
    try:
        db.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:  # readers, too, write a little beside the file; on a read-only disk they cannot
        db.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        db = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
    return db


def _refuse_others(db: sqlite3.Connection, path: Path) -> None:
    mark, layout = db.execute("PRAGMA application_id").fetchone()[0], _layout(db)
    if mark != APPLICATION:
        raise ValueError(f"{path} is an SQLite file of another program, no store of a study: give another path")
    if layout not in (WITHOUT_DIGESTS, LAYOUT):
        newer = "a newer" if layout > LAYOUT else "an older"
        raise ValueError(f"{path} was written by {newer} steppe (layout {layout}; this one has {LAYOUT}): use that one")


def _layout(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _bring_up(db: sqlite3.Connection, path: Path) -> None:
    """Gives digests to a store that has none; of several processes that try, one does it, whole."""
    check(db, path)
    db.execute("BEGIN IMMEDIATE")
    try:
        if _layout(db) == WITHOUT_DIGESTS:
            add_digests(db)
            db.execute(f"PRAGMA user_version = {LAYOUT}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def check(db: sqlite3.Connection, path: Path) -> None:
    """Reads the whole file and refuses it if pages or rows are damaged."""
    with told(path):
        found = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
        found += [f"a row of {row[0]} belongs to none of {row[2]}" for row in db.execute("PRAGMA foreign_key_check")]
        if found != ["ok"]:
            raise damaged(path, "; ".join(w for w in found if w != "ok"))
        row = changed(db) if _layout(db) != WITHOUT_DIGESTS else ""
    if row:
        raise damaged(path, row)


def damaged(path: Path, why: str) -> ValueError:
    """What to say of a store that cannot be read."""
    return ValueError(
        f"the store {path} is damaged: {why}. Bring back a copy, or move it away and run the study again: trained runs "
        "are kept in their folders, and only what was measured of them is computed anew."
    )


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What SQLite reports, with the file and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise TimeoutError(
                f"{path} was locked by another process for {PATIENCE:g} s: is one of them stopped in a debugger, or "
                "does the file lie on a network disk?"
            ) from error
        if "no such" in str(error) or "Could not decode" in str(error):  # tables are made whole: one has changed
            raise damaged(path, str(error)) from error
        raise OSError(f"{path}: {error}. Is the disk full, or the folder read-only?") from error
    except sqlite3.IntegrityError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # what SQLite says may have the damaged text in it
        raise damaged(path, str(error)) from error
