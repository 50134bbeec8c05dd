"""The store of a study: what goes in comes out, nothing is changed, and files of others are refused."""

import csv
import json
import os
import sqlite3
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isnan, nan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.measures.estimate import Cost, Estimate
from steppe.studies import Measured, Store, export_table
from steppe.studies.schema import LAYOUT


@dataclass(frozen=True)
class Cell:
    key: str
    name: str = "a run"
    config: dict = field(default_factory=lambda: {"lr": 0.1, "method_options": {"n": 2}})
    groups: dict = field(default_factory=lambda: {"augment": "flip"})


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "study.sqlite") as store:
        yield store


@contextmanager
def by_hand(store):
    """One write transaction on the file of a store, as by another program."""
    db = sqlite3.connect(store.path, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")
        yield db
        if db.in_transaction:
            db.execute("COMMIT")
    finally:
        db.close()


ESTIMATE = Estimate(0.25, 0.01, 8, "lower bound", Cost(1.0, 20.0, 0.0, 3.5), note="a note", complete=False)


def test_what_goes_in_comes_out(store):
    assert store.add([Cell("a"), Cell("b", "b", {"lr": 1}, {})]) == 2
    assert (
        store.record(
            "a",
            targets={"test_error": 0.1, "gap": nan},
            target_errors={"test_error": 0.02},
            measures={"trace": ESTIMATE, "top": {"value": 3, "stderr": nan, "kind": "exact"}},
            meta={"train_error": 0.0},
            failures={"fisher": "the loss is not finite"},
            curves=[{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": nan}],
            versions={"torch": "2.13"},
        )
        == []
    )
    run, other = store.table().runs
    assert (run.key, run.name, run.state) == ("a", "a run", "done")
    assert run.config == {"lr": 0.1, "method_options": {"n": 2}}
    assert run.groups == {"augment": "flip"}
    assert run.targets["test_error"] == 0.1
    assert isnan(run.targets["gap"])
    assert run.target_errors == {"test_error": 0.02}
    cost = {"losses": 1.0, "gradients": 20.0, "products": 0.0}
    assert run.measures["trace"] == Measured(0.25, 0.01, 8, "lower bound", cost, 3.5, "a note", False)
    assert (run.measures["top"].value, run.measures["top"].kind) == (3, "exact")
    assert isnan(run.measures["top"].stderr)
    assert run.meta == {"train_error": 0.0}
    assert run.failures == {"fisher": "the loss is not finite"}
    assert (other.state, other.measures) == ("open", {})
    assert store.curves("a") == [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": None}]
    assert store.versions() == [{"torch": "2.13"}]
    column = store.table().measure("trace")
    assert column.values[0] == 0.25
    assert isnan(column.values[1])
    assert column.errors[0] == 0.01


@given(
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4, unique=True),
    value=st.floats(allow_nan=False),
)
@settings(max_examples=30, deadline=None)
def test_any_name_and_number_survives(tmp_path_factory, names, value):
    with Store.open(tmp_path_factory.mktemp("store") / "s.sqlite") as store:
        store.add([Cell(name, name, {name: name}, {name: name}) for name in names])
        store.record(names[0], targets=dict.fromkeys(names, value), measures={n: {"value": value} for n in names})
        runs = store.table().runs
    assert [run.key for run in runs] == [run.name for run in runs] == names
    assert all(run.config == run.groups == {run.key: run.key} for run in runs)
    assert runs[0].targets == dict.fromkeys(names, value)
    assert {m: e.value for m, e in runs[0].measures.items()} == dict.fromkeys(names, value)


def test_the_first_record_of_a_name_stands(store):
    store.add([Cell("a")])
    store.record("a", targets={"e": 0.1}, measures={"m": {"value": 1.0}}, curves=[{"epoch": 0, "loss": 1}])
    again = store.record(
        "a", targets={"e": 0.9, "f": 2.0}, measures={"m": {"value": 2.0}}, curves=[{"epoch": 0, "loss": 9}]
    )
    assert again == ["e", "m"]
    (run,) = store.table().runs
    assert run.targets == {"e": 0.1, "f": 2.0}
    assert run.measures["m"].value == 1
    assert store.curves("a") == [{"epoch": 0, "loss": 1}]


def test_a_record_is_whole_or_not_there(store):
    store.add([Cell("a")])
    with pytest.raises(TypeError, match="has a value"):
        store.record("a", targets={"e": 0.1}, measures={"m": 3.0})
    with by_hand(store) as db:
        db.execute("CREATE TRIGGER fails BEFORE INSERT ON finished BEGIN SELECT RAISE(ABORT, 'disk trouble'); END")
    with pytest.raises(sqlite3.IntegrityError, match="disk trouble"):
        store.record("a", targets={"e": 0.1})
    (run,) = store.table().runs
    assert (run.state, run.targets) == ("open", {})


def test_cells_are_planned_once_and_a_key_has_one_configuration(store):
    assert store.add([Cell("a"), Cell("b")]) == 2
    assert store.add([Cell("a", "another name"), Cell("c")]) == 1
    assert [run.name for run in store.table().runs] == ["a run"] * 3
    with pytest.raises(ValueError, match="another configuration"):
        store.add([Cell("d"), Cell("a", config={"lr": 0.2})])
    assert "d" not in store.states()
    with pytest.raises(ValueError, match="no cell 'x'"):
        store.record("x", targets={"e": 1.0})


def test_states_follow_claims_failures_and_ends(store):
    store.add([Cell("a")])
    assert store.claim("a", "one")
    assert not store.claim("a", "two")
    assert store.claim("a", "one")
    assert store.states() == {"a": "running"}
    assert store.claims()["a"][0] == "one"
    store.fail("a", "out of memory")
    (run,) = store.table().runs
    assert (run.state, run.error) == ("failed", "out of memory")
    assert store.claim("a", "two")
    assert store.states() == {"a": "running"}
    assert not store.claim("a", "three", stale=60)
    assert store.claim("a", "three", stale=-1)  # the other's claim is older than that
    store.record("a", targets={"e": 1.0}, done=False)
    assert store.states() == {"a": "running"}
    store.release("a")
    assert store.states() == {"a": "failed"}
    store.record("a")
    (run,) = store.table().runs
    assert (run.state, run.error, store.claims()) == ("done", "", {})
    assert store.claim("a", "four")  # to add a measure
    assert store.states() == {"a": "done"}
    store.release()
    assert store.claims() == {}


def test_a_measure_that_failed_and_then_succeeded_did_not_fail(store):
    store.add([Cell("a")])
    store.record("a", failures={"m": "no memory"}, done=False)
    assert store.table().runs[0].failures == {"m": "no memory"}
    store.record("a", measures={"m": {"value": 1.0}})
    assert store.table().runs[0].failures == {}


@pytest.mark.parametrize("table", ["cells", "outcomes", "failures", "finished", "curves", "notes", "origins"])
def test_records_are_never_changed_even_by_hand(store, table):
    store.add([Cell("a")])
    store.record("a", targets={"e": 1.0}, failures={"m": "why"}, curves=[{"epoch": 0}])
    store.note("n", 1)
    column = {"cells": "name", "notes": "name", "origins": "versions", "curves": "record", "finished": "at"}
    for change in (f"DELETE FROM {table}", f"UPDATE {table} SET {column.get(table, 'name')} = 'x'"):
        with by_hand(store) as db, pytest.raises(sqlite3.IntegrityError, match="never changed"):
            db.execute(change)


def test_the_last_note_of_a_name_counts(store):
    store.note("study", {"name": "one"})
    store.note("study", {"name": "two"})
    assert store.notes() == {"study": {"name": "two"}}


# --- opening


def test_a_store_is_in_write_ahead_mode_and_has_a_mark(store):
    with by_hand(store) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA application_id").fetchone() == (int.from_bytes(b"STEP"),)
    assert [p.name for p in store.path.parent.iterdir() if p.suffix == ".tmp"] == []


def text_file(path):
    path.write_text("not a database at all")


def another_program(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmarks (x)")
    db.commit()
    db.close()


def newer(path):
    Store.open(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    db.close()


def filled(path, rows=300):
    with Store.open(path) as store:
        store.add([Cell(f"cell {i}") for i in range(rows)])
        for i in range(rows):
            store.record(f"cell {i}", measures={f"m{j}": {"value": i * j} for j in range(10)})


def damaged(path):
    filled(path)
    with path.open("r+b") as file:
        size = path.stat().st_size
        for page in range(65536, size - 4096, 8192):  # behind the schema
            file.seek(page)
            file.write(b"\xff" * 512)


def cut_off(path):
    filled(path)
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("how", ["open", "reading"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (text_file, "no SQLite file"),
        (lambda path: path.touch(), "is empty"),
        (Path.mkdir, "is a folder"),
        (another_program, "another program"),
        (newer, "a newer steppe"),
        (damaged, "is damaged"),
        (cut_off, "is damaged"),
    ],
)
def test_other_files_and_damaged_ones_are_refused_and_left_alone(tmp_path, make, words, how):
    path = tmp_path / "study.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ValueError, match=words) as error:
        getattr(Store, how)(path)
    assert str(path) in str(error.value)
    assert before is None or path.read_bytes() == before


def test_damage_found_later_is_reported_as_damage(tmp_path):
    path = tmp_path / "study.sqlite"
    damaged(path)
    with Store.join(path) as store, pytest.raises(ValueError, match="is damaged"):
        store.table()


def test_there_has_to_be_a_store_to_read_or_join(tmp_path):
    for way in (Store.reading, Store.join):
        with pytest.raises(FileNotFoundError, match="no store"):
            way(tmp_path / "none.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_readers_see_what_is_committed_and_cannot_write(store):
    store.add([Cell("a")])
    with Store.reading(store.path) as reader:
        assert reader.states() == {"a": "open"}
        with by_hand(store) as db:
            db.execute("INSERT INTO finished (cell, at) VALUES (1, 'now')")
            assert reader.states() == {"a": "open"}
            db.execute("COMMIT")
        assert reader.states() == {"a": "done"}
        with pytest.raises(OSError, match="readonly"):
            reader.add([Cell("b")])


def test_a_path_with_marks_of_addresses_in_it_can_be_read(tmp_path):
    path = tmp_path / "50 % #1?" / "study.sqlite"
    filled(path, 2)
    with Store.reading(path) as store:
        assert len(store.table()) == 2


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_in_a_read_only_folder_can_be_read(tmp_path):  # pragma: no cover
    filled(tmp_path / "s" / "study.sqlite", 2)
    (tmp_path / "s").chmod(0o500)
    try:
        with Store.reading(tmp_path / "s" / "study.sqlite") as store:
            assert len(store.table()) == 2
    finally:
        (tmp_path / "s").chmod(0o700)


def test_a_writer_that_waits_too_long_raises(store, monkeypatch):
    monkeypatch.setattr("steppe.studies.schema.PATIENCE", 0.05)
    locked = pytest.raises(TimeoutError, match="locked by another process")
    with Store.join(store.path) as other, by_hand(store), locked:
        other.add([Cell("a")])


# --- export


@pytest.fixture
def table(store):
    store.add(
        [Cell("a", '=1+1, "quoted"\nand <b>bold</b>'), Cell("b", config={"lr": 1, "augment": ["flip"]}, groups={})]
    )
    store.record(
        "a", targets={"e": 0.1 + 0.2, "gap": nan}, measures={"m": ESTIMATE, "far": {"value": inf}}, meta={"t": 1.5}
    )
    store.fail("b", "why")
    return store.table()


def test_a_csv_file_has_a_row_a_run(table, tmp_path):
    with export_table(table, tmp_path / "out" / "t.csv").open(newline="", encoding="utf-8") as file:
        one, two = csv.DictReader(file)
    assert one["name"] == "'" + table.runs[0].name  # a spreadsheet does not compute it
    assert float(one["target.e"]) == 0.1 + 0.2
    assert one["target.gap"] == ""
    assert (float(one["measure.m"]), float(one["measure.m.stderr"])) == (0.25, 0.01)
    assert one["measure.far"] == "inf"
    assert json.loads(one["config.method_options"]) == {"n": 2}
    assert (one["group.augment"], two["group.augment"]) == ("flip", "")
    assert (two["state"], two["error"], two["measure.m"]) == ("failed", "why", "")
    assert json.loads(two["config.augment"]) == ["flip"]


def test_a_csv_file_of_outcomes_has_a_row_a_number_with_all_that_is_known(table, tmp_path):
    with export_table(table, tmp_path / "t.csv", "outcomes").open(newline="", encoding="utf-8") as file:
        rows = {(row["role"], row["name"]): row for row in csv.DictReader(file)}
    assert set(rows) == {("target", "e"), ("target", "gap"), ("measure", "m"), ("measure", "far"), ("meta", "t")}
    m = rows["measure", "m"]
    assert (m["kind"], m["n"], m["note"], m["complete"], m["seconds"]) == ("lower bound", "8", "a note", "False", "3.5")
    assert json.loads(m["cost"])["gradients"] == 20


def test_an_empty_table_and_wrong_names(table, tmp_path):
    assert export_table(type(table)([]), tmp_path / "t.csv").read_text() == "\n"
    with pytest.raises(ValueError, match=r"ends in \.csv or \.parquet"):
        export_table(table, tmp_path / "t.xlsx")
    with pytest.raises(ValueError, match="no shape of a table 'wide'"):
        export_table(table, tmp_path / "t.csv", "wide")


def test_parquet_without_pyarrow_says_what_is_missing(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'steppe\[parquet\]'"):
        export_table(table, tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()


def test_parquet_is_read_back(table, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(export_table(table, tmp_path / "t.parquet"))
    rows = found.to_pylist()
    assert rows[0]["measure.m"] == 0.25
    assert rows[1]["measure.m"] is None
    assert [row["config.lr"] for row in rows] == [0.1, 1.0]  # one was a whole number
    assert str(found.schema.field("config.lr").type) == "double"
    assert [row["target.gap"] for row in rows] == [None, None]
