"""What spawned processes do to a store in its tests."""

import os
import sys
from types import SimpleNamespace

from steppe.studies import Store


def cell(key):
    return SimpleNamespace(key=key, name=key, config={"key": key}, groups={})


def outcome(key):
    """What a cell always gives, so that stores can be compared."""
    seed = sum(key.encode())
    return {
        "targets": {"error": seed / 7},
        "measures": {f"m{i}": {"value": seed / (i + 1), "stderr": 0.1, "n": 4, "kind": "unbiased"} for i in range(20)},
        "curves": [{"epoch": e, "loss": seed / (e + 1)} for e in range(10)],
    }


def hammer(path, keys):
    """Claims cells that nobody has, and records them: the work of one of many writers."""
    who = f"process {os.getpid()}"
    won = 0
    with Store.open(path) as store:
        store.add([cell(key) for key in keys])
        for key in keys:
            if store.states()[key] != "done" and store.claim(key, who):
                won += not store.record(key, **outcome(key))
    return won


if __name__ == "__main__":
    mode, path, *keys = sys.argv[1:]
    if mode == "hammer":
        print(hammer(path, keys))
    else:  # goes on until it is killed, and says after each commit what is safe
        with Store.open(path) as store:
            states = store.states()
            for key in keys:
                if states.get(key) == "done":
                    continue
                store.add([cell(key)])
                store.record(key, **outcome(key))
                print(key, flush=True)
