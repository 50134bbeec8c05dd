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


def test_a_layout_whose_rows_had_no_digests_is_refused(whole, tmp_path):
    """One byte of the file's head says which layout it has: with another, no row would be checked."""
    path = tmp_path / "study.sqlite"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    for way in (Store.open, Store.join, Store.reading):
        with pytest.raises(ValueError, match="written by an older steppe"):
            way(path)


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
