"""Law: a store is read as it was written, or refused by name: every row has a digest."""

import random
import shutil
import sqlite3
from types import SimpleNamespace

import pytest

from steppe.studies import Store

FLIPS = 600  # of random bits in the file
CELLS = 6


def fill(path):
    """A study of six cells: outcomes, curves, failures, notes and versions."""
    with Store.open(path) as store:
        cells = [
            SimpleNamespace(
                key=f"cell-{i}", name=f"run {i}", config={"lr": i / 7, "seed": i}, groups={"augment": "flip"}
            )
            for i in range(CELLS)
        ]
        store.add(cells)
        for i in range(CELLS - 1):
            store.record(
                f"cell-{i}",
                targets={"test_error": i / 3, "gap": -0.0},
                target_errors={"test_error": 0.25},
                measures={f"m{j}": {"value": i * j, "stderr": i / 9, "n": 4, "cost": {"losses": 1}} for j in range(5)},
                meta={"seconds": 3},
                failures={"fisher": "the loss is not finite"},
                curves=[{"epoch": e, "loss": i / (e + 1)} for e in range(4)],
                versions={"torch": "2.13"},
            )
        store.fail(f"cell-{CELLS - 1}", "out of memory")
        store.note("study", {"name": "one", "cells": list(range(40))})
        store.note("study", {"name": "two"})


def read(path):
    """Everything that a store says."""
    with Store.reading(path) as store:
        keys = list(store.states())
        runs = [repr(run) for run in store.table().runs]
        return runs, store.notes(), store.states(), store.versions(), [store.curves(k) for k in keys]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "study.sqlite"
    fill(path)
    return path


def test_a_flipped_bit_is_refused_by_name_or_changes_nothing(whole, tmp_path):
    draws, expected, content, refused = random.Random(0), read(whole), whole.read_bytes(), 0
    path = tmp_path / "study.sqlite"
    for _ in range(FLIPS):
        at, bit = draws.randrange(len(content)), draws.randrange(8)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        trouble = None
        try:
            found = read(path)
        except (ValueError, OSError) as error:
            trouble, refused = error, refused + 1
        if trouble is not None:
            assert str(path) in str(trouble), f"bit {bit} of byte {at}: {trouble}"
        else:
            assert found == expected, f"bit {bit} of byte {at}"
    assert refused > FLIPS // 20  # most of a small file is empty


@pytest.mark.parametrize(
    ("table", "change", "named"),
    [
        ("cells", "config = replace(config, '3', '4')", "cells"),
        ("outcomes", "value = value + 1 WHERE cell = 3 AND name = 'm2'", "outcomes .*cell 3.*m2"),
        ("failures", "error = 'x' WHERE id = 2", "failures"),
        ("finished", "at = 'x' WHERE cell = 2", "finished"),
        ("curves", "record = '{}' WHERE cell = 1 AND epoch = 2", "curves"),
        ("notes", "value = '1' WHERE id = 1", "notes"),
        ("origins", "versions = '{}'", "origins"),
    ],
)
@pytest.mark.parametrize("how", ["open", "reading"])
def test_a_changed_row_is_refused_with_its_table(table, change, named, how, whole, tmp_path):
    path = tmp_path / "study.sqlite"
    shutil.copy(whole, path)
    db = sqlite3.connect(path)
    db.execute(f"DROP TRIGGER {table}_update")
    db.execute(f"UPDATE {table} SET {change}")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match=rf"study.sqlite is damaged: .*{named}"):
        getattr(Store, how)(path)


def test_a_damaged_store_is_closed(tmp_path, monkeypatch):
    path, opened, connect = tmp_path / "study.sqlite", [], sqlite3.connect
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1])
    for way in (Store.reading, Store.join):
        with pytest.raises(ValueError, match="is damaged"):
            way(path)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            opened[-1].execute("SELECT 1")


def old(path):
    """A store as the first version made it."""
    from steppe.studies import schema

    db = sqlite3.connect(path)
    db.executescript(OLD)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA application_id = {schema.APPLICATION}")
    db.execute("PRAGMA user_version = 1")
    now = "2026-11-16T00:00:00.000+00:00"
    db.execute("INSERT INTO cells VALUES (1, 'a', 'run a', '{\"lr\": 0.1}', '{}', ?)", (now,))
    db.execute("INSERT INTO cells VALUES (2, 'b', 'run b', '{\"lr\": 0.2}', '{}', ?)", (now,))
    db.execute('INSERT INTO origins VALUES (1, \'{"torch": "2.13"}\')')
    row = (1, "m", "measure", 2, None, 4, "exact", "{}", None, "", 1, 1, now)
    db.execute(f"INSERT INTO outcomes VALUES ({', '.join('?' * len(row))})", row)
    db.execute("INSERT INTO failures VALUES (1, 2, '', 'why', ?)", (now,))
    db.execute("INSERT INTO finished VALUES (1, ?)", (now,))
    db.execute("INSERT INTO curves VALUES (1, 1, '{\"loss\": 1.5}')")
    db.execute("INSERT INTO notes VALUES (1, 'study', '{}', ?)", (now,))
    db.commit()
    db.close()


def test_a_store_without_digests_is_read_and_gets_them_when_it_is_written_to(tmp_path):
    path = tmp_path / "study.sqlite"
    old(path)
    before = path.read_bytes()
    found = read(path)
    assert path.read_bytes() == before  # reading changes nothing
    assert found[2] == {"a": "done", "b": "failed"}
    Store.open(path).close()
    assert read(path) == found
    with Store.join(path) as store:
        store.record("b", measures={"m": {"value": 1.0}})
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            store._db.execute("UPDATE outcomes SET value = 3")
    assert read(path)[2] == {"a": "done", "b": "done"}
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER outcomes_update")
    db.execute("UPDATE outcomes SET value = 3 WHERE cell = 1")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match=r"is damaged: .*outcomes .*cell 1"):
        read(path)


OLD = """
CREATE TABLE cells (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL, config TEXT NOT NULL,
    groups TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE origins (id INTEGER PRIMARY KEY, versions TEXT NOT NULL UNIQUE);
CREATE TABLE outcomes (cell INTEGER NOT NULL REFERENCES cells (id), name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('target', 'measure', 'meta')), value REAL, stderr REAL, n INTEGER NOT NULL,
    kind TEXT NOT NULL, cost TEXT NOT NULL, seconds REAL, note TEXT NOT NULL, complete INTEGER NOT NULL,
    origin INTEGER NOT NULL REFERENCES origins (id), at TEXT NOT NULL, PRIMARY KEY (cell, role, name)) WITHOUT ROWID;
CREATE TABLE failures (id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cells (id), name TEXT NOT NULL,
    error TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE finished (cell INTEGER PRIMARY KEY REFERENCES cells (id), at TEXT NOT NULL);
CREATE TABLE curves (cell INTEGER NOT NULL REFERENCES cells (id), epoch INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (cell, epoch)) WITHOUT ROWID;
CREATE TABLE notes (id INTEGER PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE claims (cell INTEGER PRIMARY KEY REFERENCES cells (id), worker TEXT NOT NULL, since REAL NOT NULL);
""" + "".join(
    f"CREATE TRIGGER {table}_{what.lower()} BEFORE {what} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'records of a study are never changed'); END;\n"
    for table in ("cells", "origins", "outcomes", "failures", "finished", "curves", "notes")
    for what in ("UPDATE", "DELETE")
)


def test_a_study_is_held_also_when_its_lock_is_deleted(tmp_path):
    from steppe.studies.run import being_run, claimed

    study = SimpleNamespace(folder=tmp_path / "study")
    assert not being_run(study)
    with claimed(study.folder):
        (study.folder / "study.lock").unlink()
        assert being_run(study)
        with pytest.raises(RuntimeError, match="is being run by process"), claimed(study.folder):
            pass
    assert not being_run(study)


def test_a_store_is_not_written_through_a_symbolic_link(whole, tmp_path):
    shutil.copy(whole, tmp_path / "outside.sqlite")
    path = tmp_path / "study.sqlite"
    path.symlink_to(tmp_path / "outside.sqlite")
    for way in (Store.open, Store.join):
        with pytest.raises(OSError, match="symbolic link"):
            way(path)
    assert read(path) == read(whole)
