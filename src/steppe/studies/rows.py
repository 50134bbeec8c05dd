"""Rows of a store with a digest in each: a row that is not as it was written is refused by its name.

A digest takes 3 microseconds a row. Ids are not in it: SQLite's own check finds one that does not fit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from .._util.digests import digest

# the columns of each table whose rows are never changed: those that name a row, and the others
NAMING = {
    "cells": ("key", "name"),
    "origins": ("versions",),
    "outcomes": ("cell", "role", "name"),
    "failures": ("cell", "name"),
    "finished": ("cell",),
    "curves": ("cell", "epoch"),
    "notes": ("name",),
}
OTHERS = {
    "cells": ("config", "groups", "at"),
    "origins": (),
    "outcomes": ("value", "stderr", "n", "kind", "cost", "seconds", "note", "complete", "origin", "at"),
    "failures": ("error", "at"),
    "finished": ("at",),
    "curves": ("record",),
    "notes": ("value", "at"),
}
COLUMNS = {table: (*NAMING[table], *OTHERS[table]) for table in NAMING}
COLUMN = "digest TEXT NOT NULL DEFAULT ''"  # a row that is cut short has the default, which is no digest


def row_digest(table: str, *values: Any) -> str:
    """Of the columns of a row in their order, as SQLite gives them back."""
    return digest([ascii((table, values))])[:16]


def insert(db: sqlite3.Connection, table: str, values: Sequence[Any], *, unless_there: bool = False) -> bool:
    """Adds a row, of values in the order of `COLUMNS`, and says whether it is new."""
    either = "OR IGNORE " if unless_there else ""
    marks = ", ".join("?" * (len(values) + 1))
    query = f"INSERT {either}INTO {table} ({', '.join(COLUMNS[table])}, digest) VALUES ({marks})"
    return db.execute(query, (*values, row_digest(table, *values))).rowcount == 1


def changed(db: sqlite3.Connection) -> str:
    """The name of a row that is not as it was written; empty if there is none."""
    for table, columns in COLUMNS.items():
        for *values, written in db.execute(f"SELECT {', '.join(columns)}, digest FROM {table}"):
            if row_digest(table, *values) != written:
                name = ", ".join(f"{c} {v!r:.80}" for c, v in zip(NAMING[table], values, strict=False))
                return f"the row of {table} with {name} does not have the digest that was written with it"
    return ""


def add_digests(db: sqlite3.Connection) -> None:
    """Gives a digest to all rows of a store that was made when there were none; in a transaction of the caller's."""
    db.create_function("row_digest", -1, row_digest, deterministic=True)
    for table, columns in COLUMNS.items():
        guard, sql = f"{table}_update", "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?"
        trigger = db.execute(sql, (guard,)).fetchone()[0]
        db.execute(f"DROP TRIGGER {guard}")
        db.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN}")
        db.execute(f"UPDATE {table} SET digest = row_digest('{table}', {', '.join(columns)})")
        db.execute(trigger)
