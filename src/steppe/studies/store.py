"""The records of a study: one SQLite file that several processes append to, and in which no record changes."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.digests import packed_bits, unpacked_bits
from .._util.formats import from_json
from . import schema
from .schema import columns_of, insert, text_of, time_now
from .table import Measured, Run, Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .cell import Cell

# a finished cell stays done while a measure is added to it; a failed cell that is computed again is running
STATE = """CASE WHEN EXISTS (SELECT 1 FROM finished WHERE finished.cell = cells.id) THEN 'done'
    WHEN EXISTS (SELECT 1 FROM claims WHERE claims.cell = cells.id) THEN 'running'
    WHEN EXISTS (SELECT 1 FROM failures WHERE failures.cell = cells.id AND failures.name = '') THEN 'failed'
    ELSE 'open' END"""
TEST_ROWS = "test_correct"  # an outcome whose note has one bit per test row: whether it is classified correctly
OUTCOMES = """SELECT cell, role, name, value, stderr, n, kind, cost, seconds, note, complete
    FROM outcomes ORDER BY cell, role, name"""


class Store:
    """The records of a study: `with Store.open(path) as store: ...`. Use one object per process and thread.

    Parameters
    ----------
    path : Path
        The SQLite file.
    db : sqlite3.Connection
        A connection to it; `open`, `join` and `reading` make one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, steppe.studies.Store.open(f"{folder}/study.sqlite") as store:
    ...     _ = store.add([steppe.studies.Run("key", "a run", {"lr": 0.1}, {}, "open")])
    ...     _ = store.record("key", targets={"test_error": 0.25})
    ...     table = store.table()
    >>> table.runs[0].state, table.runs[0].targets
    ('done', {'test_error': 0.25})

    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open a store for writing, and make it if there is none; raises for a damaged or foreign file."""
        schema.create(Path(path))
        return cls(Path(path), schema.connect(Path(path), reading=False))

    @classmethod
    def join(cls, path: str | os.PathLike[str]) -> Store:
        """Open an existing store for writing without reading all of it, for workers of a process that opened it."""
        return cls(Path(path), schema.connect(Path(path), reading=False, whole=False))

    @classmethod
    def reading(cls, path: str | os.PathLike[str], *, whole: bool = True) -> Store:
        """Open a store for reading, also while others write to it; `whole` reads and checks all of it first."""
        return cls(Path(path), schema.connect(Path(path), reading=True, whole=whole))

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; waits for other writers."""
        with schema.explained(self.path), schema.transaction(self._db):
            yield self._db

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with schema.explained(self.path):
            return self._db.execute(query, values).fetchall()

    def add(self, cells: Iterable[Cell | Run]) -> int:
        """Add cells to the plan; existing cells stay as they are.

        Returns
        -------
        int
            The number of new cells.

        """
        rows = [(c.key, c.name, text_of(c.config), text_of(c.groups), time_now()) for c in cells]
        with self._writing() as db:
            new = 0
            for row in rows:
                stored = db.execute("SELECT config FROM cells WHERE key = ?", row[:1]).fetchone()
                if stored is None:
                    new += insert(db, "cells", row)
                elif from_json(stored[0], self.path) != json.loads(row[2]):
                    raise ValueError(
                        f"{self.path}: the cell {row[0]} has another configuration, {stored[0]}, not {row[2]}"
                    )
            return new

    def claim(self, key: str, worker: str, stale: float | None = None) -> bool:
        """Claim a cell for a worker.

        Parameters
        ----------
        key : str
            The cell's key.
        worker : str
            The worker's name. Its own claim is renewed.
        stale : float, optional
            Take over another worker's claim that is older than this many seconds.

        Returns
        -------
        bool
            Whether the worker has the cell; False if another has it.

        """
        now = time.time()
        with self._writing() as db:
            changed = db.execute(
                "INSERT INTO claims (cell, worker, since) VALUES (?, ?, ?) ON CONFLICT (cell) DO UPDATE "
                "SET worker = excluded.worker, since = excluded.since WHERE worker = excluded.worker OR since < ?",
                (self._id(key), worker, now, now - stale if stale is not None else -1.0),
            )
            return changed.rowcount == 1

    def release(self, key: str | None = None) -> None:
        """End the claim to a cell, or all claims: for a driver that starts when no worker is left."""
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
        rows: NDArray[np.bool_] | None = None,
        done: bool = True,
    ) -> list[str]:
        """Add the outcome of a cell in one transaction.

        The first record of a name stays, so a worker that was killed after its commit may compute its cell again.

        Parameters
        ----------
        key : str
            The cell's key.
        targets, target_errors, meta : mapping of str to float, optional
            Targets, their standard errors, and other numbers.
        measures : mapping, optional
            Estimates by name, or mappings with the same fields.
        failures : mapping of str to str, optional
            Why measures have no value.
        curves : iterable of mapping
            Records of epochs.
        versions : mapping of str to str, optional
            Versions of the libraries that computed the outcome.
        rows : array of bool, optional
            Per test row, whether it is classified correctly: `Run.rows`.
        done : bool
            Whether this finishes the cell and ends its claim.

        Returns
        -------
        list of str
            The names that already had a record.

        """
        targets, errors = targets or {}, target_errors or {}
        outcomes = [("target", n, columns_of({"value": v, "stderr": errors.get(n, nan)})) for n, v in targets.items()]
        outcomes += [("meta", n, columns_of({"value": v})) for n, v in (meta or {}).items()]
        outcomes += [("measure", n, columns_of(e)) for n, e in (measures or {}).items()]
        if rows is not None:
            share = {"value": float(rows.mean()), "n": len(rows), "kind": "rows", "note": packed_bits(rows)}
            outcomes.append(("meta", TEST_ROWS, columns_of(share)))
        with self._writing() as db:
            cell, now, software = self._id(key), time_now(), text_of(versions or {})
            insert(db, "origins", (software,), unless_there=True)
            origin = int(db.execute("SELECT id FROM origins WHERE versions = ?", (software,)).fetchone()[0])
            new = [
                insert(db, "outcomes", (cell, role, name, *values, origin, now), unless_there=True)
                for role, name, values in outcomes
            ]
            for name, error in (failures or {}).items():
                insert(db, "failures", (cell, name, error, now))
            for i, record in enumerate(curves):
                insert(db, "curves", (cell, int(record.get("epoch", i)), text_of(record)), unless_there=True)
            if done:
                insert(db, "finished", (cell, now), unless_there=True)
                db.execute("DELETE FROM claims WHERE cell = ?", (cell,))
        return [name for (_, name, _), is_new in zip(outcomes, new, strict=True) if not is_new]

    def fail(self, key: str, error: str) -> None:
        """Record that a cell failed, and end its claim; it may be computed again."""
        with self._writing() as db:
            cell = self._id(key)
            insert(db, "failures", (cell, "", error, time_now()))
            db.execute("DELETE FROM claims WHERE cell = ?", (cell,))

    def note(self, name: str, value: Any) -> None:
        """Store a fact about the study, such as its file; the last one of a name counts."""
        with self._writing() as db:
            insert(db, "notes", (name, text_of(value), time_now()))

    def notes(self) -> dict[str, Any]:
        """The facts about the study by name."""
        return {n: from_json(v, self.path) for n, v in self._rows("SELECT name, value FROM notes ORDER BY id")}

    def table(self) -> Table:
        """All runs in the order of the plan, as of one moment."""
        self._rows("BEGIN")  # all queries see the same records
        try:
            cells = self._rows(f"SELECT id, key, name, config, groups, {STATE} FROM cells ORDER BY id")
            failures = self._rows("SELECT cell, name, error FROM failures ORDER BY id")
            results = self._results(self._rows(OUTCOMES))
        finally:
            self._rows("ROLLBACK")
        errors: dict[int, dict[str, str]] = {}
        for cell, name, error in failures:
            errors.setdefault(cell, {})[name] = error
        runs = []
        for cell, key, name, config, groups, state in cells:
            targets, target_errors, measures, meta, rows = results.get(cell, ({}, {}, {}, {}, None))
            of_cell = errors.get(cell, {})
            unmeasured = {m: error for m, error in of_cell.items() if m and m not in measures}
            why = "" if state == "done" else of_cell.get("", "")
            settings, within = (from_json(text, self.path) for text in (config, groups))
            runs.append(
                Run(key, name, settings, within, state, targets, measures, target_errors, meta, unmeasured, why, rows)
            )
        return Table(runs)

    def _results(self, outcomes: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
        """Targets, their errors, measures, meta and correct test rows by the id of the cell."""
        results: dict[int, tuple[Any, ...]] = {}
        costs: dict[str, Any] = {}  # a few texts occur in many runs: each is parsed once
        for cell, role, name, value, stderr, n, kind, cost, seconds, note, complete in outcomes:
            of_cell = results.setdefault(cell, ({}, {}, {}, {}, None))
            targets, target_errors, measures, meta, _ = of_cell
            number, error, time_taken = (nan if v is None else v for v in (value, stderr, seconds))
            if role == "measure":
                if cost not in costs:
                    costs[cost] = from_json(cost, self.path)
                measures[name] = Measured(number, error, n, kind, costs[cost], time_taken, note, bool(complete))
            elif role == "target":
                targets[name] = number
                if stderr is not None:
                    target_errors[name] = stderr
            elif name == TEST_ROWS:
                results[cell] = (*of_cell[:-1], unpacked_bits(note))
            else:
                meta[name] = number
        return results

    def states(self) -> dict[str, str]:
        """The state of each cell by key: done, failed, running or open."""
        return dict(self._rows(f"SELECT key, {STATE} FROM cells ORDER BY id"))

    def claims(self) -> dict[str, tuple[str, float]]:
        """The worker of each claimed cell, and since when."""
        query = "SELECT key, worker, since FROM claims JOIN cells ON cells.id = cell ORDER BY cell"
        return {key: (worker, since) for key, worker, since in self._rows(query)}

    def curves(self, key: str) -> list[dict[str, Any]]:
        """The records of a cell's epochs."""
        rows = self._rows("SELECT record FROM curves WHERE cell = ? ORDER BY epoch", (self._id(key),))
        return [from_json(row[0], self.path) for row in rows]

    def versions(self) -> list[dict[str, str]]:
        """The sets of library versions that computed outcomes, each once."""
        return [from_json(row[0], self.path) for row in self._rows("SELECT versions FROM origins ORDER BY id")]

    def origins(self) -> dict[str, dict[str, str]]:
        """The versions, machine and day that computed each cell, by key."""
        query = """SELECT DISTINCT key, versions FROM outcomes JOIN cells ON cells.id = cell
            JOIN origins ON origins.id = origin ORDER BY origins.id"""
        return {key: from_json(text, self.path) for key, text in self._rows(query)}

    def _id(self, key: str) -> int:
        rows = self._rows("SELECT id FROM cells WHERE key = ?", (key,))
        if not rows:
            raise ValueError(f"there is no cell {key!r} in {self.path}: plan it with add() first")
        return int(rows[0][0])
