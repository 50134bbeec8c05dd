"""Many processes at one store, and processes that are killed while they write."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from studies_writers import cell, outcome
from tiers import slow_unless

from steppe.studies import Store

SCRIPT = str(Path(__file__).parents[1] / "studies_writers.py")


def start(mode, path, keys):
    return subprocess.Popen([sys.executable, SCRIPT, mode, str(path), *keys], stdout=subprocess.PIPE, text=True)


def undisturbed(path, keys):
    """The table that one process makes in peace."""
    with Store.open(path) as store:
        store.add([cell(key) for key in keys])
        for key in keys:
            store.record(key, **outcome(key))
        return store.table()


def by_key(table):
    return {run.key: run for run in table.runs}


def test_many_processes_create_claim_and_record_at_once(tmp_path):
    """All of them create the store, plan the same cells and fight for them: each cell is recorded once and whole."""
    keys = [f"cell-{i}" for i in range(120)]
    path = tmp_path / "study.sqlite"
    orders = [random.Random(i).sample(keys, len(keys)) for i in range(4)]
    processes = [start("hammer", path, order) for order in orders]
    won = [int(p.communicate(timeout=120)[0]) for p in processes]
    assert [p.returncode for p in processes] == [0] * 4
    assert sum(won) == len(keys)
    with Store.reading(path) as store:
        table = store.table()
        assert store.claims() == {}
        assert all(len(store.curves(key)) == 10 for key in keys)
    same(table, undisturbed(tmp_path / "other.sqlite", keys))


def same(table, other):
    """Two tables with the same runs, in whatever order they were planned; missing numbers are equal."""
    a, b = by_key(table), by_key(other)
    assert a.keys() == b.keys()
    for key, run in a.items():
        assert repr(run) == repr(b[key])


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
@pytest.mark.parametrize("kills", slow_unless(lambda kills: kills < 16, [6, 16]))
def test_killed_writers_lose_only_what_was_not_committed(tmp_path, kills):
    """Killed at many moments, a writer goes on each time; what it had said was safe is there, and nothing in halves."""
    keys = [f"cell-{i}" for i in range(5000)]
    path = tmp_path / "study.sqlite"
    draws = random.Random(0)
    safe, runs = set(), {}
    for kill in range(kills):
        with start("forever", path, keys) as process:
            if kill % 4:  # in the middle of its writing; else wherever it is, making or opening the store
                safe |= {process.stdout.readline().strip() for _ in range(draws.randint(8, 24))}
            time.sleep(draws.uniform(0, 0.005 if kill % 4 else 0.2))
            process.send_signal(signal.SIGKILL)
            safe |= set(process.stdout.read().splitlines()) & set(keys)  # a line may be cut off
        if not path.exists():
            assert not safe
            continue
        with Store.reading(path) as store:
            runs = by_key(store.table())
        assert safe <= runs.keys()
        for key, run in runs.items():
            assert (len(run.measures), run.state) in {(20, "done"), (0, "open")}, key
            assert key not in safe or run.state == "done"
    assert len(safe) > 20
    with Store.open(path) as store:
        for key in runs:
            store.record(key, **outcome(key))
        same(store.table(), undisturbed(tmp_path / "other.sqlite", list(runs)))
