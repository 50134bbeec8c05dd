"""What a study keeps: one SQLite file, to which many processes add, and in which nothing is ever changed."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any, Protocol

from .._util.untrusted import from_json
from . import records, schema
from .rows import insert
from .table import Table

NOTES, VERSIONS = "SELECT name, value FROM notes ORDER BY id", "SELECT versions FROM origins ORDER BY id"


class Planned(Protocol):
    """A cell that a study is going to compute, under a key that follows from its configuration."""

    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def groups(self) -> Mapping[str, Any]: ...


class Store:
    """The records of a study: `with Store.open(path) as store: ...`. One object a process and thread."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """A store to write to, made if there is none; a damaged or foreign file is refused."""
        place = Path(path)
        schema.create(place)
        store = cls.join(place)
        store._checked()
        return store

    @classmethod
    def join(cls, path: str | os.PathLike[str]) -> Store:
        """A store that another process has opened: for its workers, who need not read all of it once more."""
        return cls(Path(path), schema.connect(Path(path), reading=False))

    @classmethod
    def reading(cls, path: str | os.PathLike[str]) -> Store:
        """A store to read only, also while others write to it; for reports."""
        store = cls(Path(path), schema.connect(Path(path), reading=True))
        store._checked()
        return store

    def _checked(self) -> None:
        try:
            schema.check(self._db, self.path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets the file go; may be called twice."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """All of it or none of it; waits for other writers."""
        with schema.told(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def add(self, cells: Iterable[Planned]) -> int:
        """Plans cells, and returns how many are new; one that is there already stays as it is."""
        rows = [(c.key, c.name, records.text(c.config), records.text(c.groups), records.now()) for c in cells]
        with self._writing() as db:
            new = 0
            for row in rows:
                there = db.execute("SELECT config FROM cells WHERE key = ?", row[:1]).fetchone()
                if there is None:
                    new += insert(db, "cells", row)
                elif from_json(there[0], self.path) != json.loads(row[2]):
                    raise ValueError(
                        f"the cell {row[0]} is in {self.path} with another configuration: {there[0]} is not {row[2]}"
                    )
            return new

    def claim(self, key: str, worker: str, stale: float | None = None) -> bool:
        """Takes a cell for a worker, or says that another has it; its own claim is made new.

        A claim older than `stale` seconds is taken over: whoever had it is taken for dead.
        """
        now = time.time()
        with self._writing() as db:
            cell = self._id(key)
            limit = now - stale if stale is not None else -1.0
            changed = db.execute(
                "INSERT INTO claims (cell, worker, since) VALUES (?, ?, ?) ON CONFLICT (cell) DO UPDATE "
                "SET worker = excluded.worker, since = excluded.since WHERE worker = excluded.worker OR since < ?",
                (cell, worker, now, limit),
            )
            return changed.rowcount == 1

    def release(self, key: str | None = None) -> None:
        """Gives up the claim to a cell, or all claims: for a driver that starts, and knows that no worker is left."""
        with self._writing() as db:
            if key is None:
                db.execute("DELETE FROM claims")
            else:
                db.execute("DELETE FROM claims WHERE cell = ?", (self._id(key),))

    def record(
        self,
        key: str,
        *,
        targets: Mapping[str, float] | None = None,
        target_errors: Mapping[str, float] | None = None,
        measures: Mapping[str, Any] | None = None,
        meta: Mapping[str, float] | None = None,
        failures: Mapping[str, str] | None = None,
        curves: Iterable[Mapping[str, Any]] = (),
        versions: Mapping[str, str] | None = None,
        done: bool = True,
    ) -> list[str]:
        """Adds what came out of a cell, all of it or nothing, and returns the names that were there already.

        The first record of a name stands, so a worker that was killed after its commit may simply do its cell again.
        Measures are estimates, or mappings with the same fields. Curves are records of epochs. `failures` says why
        measures have no value. `done` ends the cell and its claim.
        """
        errors = target_errors or {}
        rows = [
            ("target", n, records.row({"value": v, "stderr": errors.get(n, nan)})) for n, v in (targets or {}).items()
        ]
        rows += [("meta", n, records.row({"value": v})) for n, v in (meta or {}).items()]
        rows += [("measure", n, records.row(e)) for n, e in (measures or {}).items()]
        with self._writing() as db:
            cell, now = self._id(key), records.now()
            origin = self._origin(db, records.text(versions or {}))
            kept = [
                insert(db, "outcomes", (cell, role, name, *values, origin, now), unless_there=True)
                for role, name, values in rows
            ]
            for name, error in (failures or {}).items():
                insert(db, "failures", (cell, name, error, now))
            for i, record in enumerate(curves):
                epoch = (cell, int(record.get("epoch", i)), records.text(record))
                insert(db, "curves", epoch, unless_there=True)
            if done:
                insert(db, "finished", (cell, now), unless_there=True)
                db.execute("DELETE FROM claims WHERE cell = ?", (cell,))
        return [name for (_, name, _), new in zip(rows, kept, strict=True) if not new]

    @staticmethod
    def _origin(db: sqlite3.Connection, versions: str) -> int:
        insert(db, "origins", (versions,), unless_there=True)
        return int(db.execute("SELECT id FROM origins WHERE versions = ?", (versions,)).fetchone()[0])

    def fail(self, key: str, error: str) -> None:
        """Notes that a cell failed and why, and ends its claim; it may be tried again."""
        with self._writing() as db:
            cell = self._id(key)
            insert(db, "failures", (cell, "", error, records.now()))
            db.execute("DELETE FROM claims WHERE cell = ?", (cell,))

    def note(self, name: str, value: Any) -> None:
        """Keeps a fact about the study itself, such as its file; the last one of a name counts."""
        with self._writing() as db:
            insert(db, "notes", (name, records.text(value), records.now()))

    def notes(self) -> dict[str, Any]:
        """The facts about the study."""
        with schema.told(self.path):
            return {n: from_json(v, self.path) for n, v in self._db.execute(NOTES)}

    def table(self) -> Table:
        """All runs, with what is known of them, as of one moment."""
        with schema.told(self.path):
            return records.table(self._db, self.path)

    def states(self) -> dict[str, str]:
        """The state of each cell by its key: done, failed, running or open."""
        with schema.told(self.path):
            return dict(self._db.execute(f"SELECT key, {records.STATE} FROM cells ORDER BY id").fetchall())

    def measured(self) -> dict[str, set[str]]:
        """The measures that each cell has a value of, by its key: what is missing can be added."""
        found: dict[str, set[str]] = {key: set() for key in self.states()}
        query = "SELECT key, outcomes.name FROM outcomes JOIN cells ON cells.id = cell WHERE role = 'measure'"
        with schema.told(self.path):
            for key, name in self._db.execute(query):
                found[key].add(name)
        return found

    def claims(self) -> dict[str, tuple[str, float]]:
        """Who works on which cell, and since when."""
        query = "SELECT key, worker, since FROM claims JOIN cells ON cells.id = cell ORDER BY cell"
        with schema.told(self.path):
            return {key: (worker, since) for key, worker, since in self._db.execute(query)}

    def curves(self, key: str) -> list[dict[str, Any]]:
        """The records of a cell's epochs."""
        query = "SELECT record FROM curves WHERE cell = ? ORDER BY epoch"
        with schema.told(self.path):
            return [from_json(row[0], self.path) for row in self._db.execute(query, (self._id(key),))]

    def versions(self) -> list[dict[str, str]]:
        """With what the outcomes were computed: each set of versions once."""
        with schema.told(self.path):
            return [from_json(row[0], self.path) for row in self._db.execute(VERSIONS)]

    def _id(self, key: str) -> int:
        found = self._db.execute("SELECT id FROM cells WHERE key = ?", (key,)).fetchone()
        if found is None:
            raise ValueError(f"there is no cell {key!r} in {self.path}: plan it with add() first")
        return int(found[0])
