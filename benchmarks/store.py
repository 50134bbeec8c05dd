"""A study of 3000 runs with 50 measures each is written and read in times that grow linearly.

Synthetic runs: 50 estimates, 3 targets and 5 records of epochs each. `insert` is a plan of all cells and then one
transaction a run, as workers write them; `open` checks the whole file; `states` is what a running study asks most;
`table` reads everything into memory; `CSV` is one row a run; `correlate` is the verdicts on all measures against
one target, over all runs, within four groups and of the flattest; `report` is the whole page from the store, with all
measures against all three targets, what they follow instead, and the worst environments; `page` is its size. Times are
those of the process on a core, so that other work of the machine does not count; `insert, wall` and the rates are by
the clock. The bar: from one size to the next, each takes at most 1.6 times as long as the number of runs says. It does
not hold for `correlate` and `report`: they compare all pairs of runs.

    PYTHONPATH=src python benchmarks/store.py [--sizes 300 1000 3000] [--measures 50] [--repeats 2] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from steppe.studies import Store, Table, export_table
from steppe.studies.correlate import findings
from steppe.studies.report.page import write

BAR = 1.6
VERSIONS = {"steppe": "0.1.0", "torch": "2.13.0", "python": platform.python_version()}


@dataclass(frozen=True)
class Cell:
    key: str
    name: str
    config: dict[str, Any]
    groups: dict[str, Any]


def cells(runs: int) -> list[Cell]:
    made = []
    for i in range(runs):
        groups = {"augment": ["none", "flip"][i % 2], "mixup": [0, 0.5][i // 2 % 2]}
        config = {"method": ["sam", "none", "asam"][i % 3], "lr": 10.0 ** -(i % 5), "seed": i, "epochs": 30, **groups}
        made.append(Cell(f"{i:016x}", f"run {i}", config, groups))
    return made


def outcomes(runs: int, measures: int) -> list[dict[str, Any]]:
    draws = np.random.default_rng(0)
    values, errors = draws.normal(size=(runs, measures)), draws.uniform(0, 0.1, size=(runs, measures))
    cost = {"losses": 20.0, "gradients": 20.0, "products": 0.0, "seconds": 1.25}
    results = []
    for row, error in zip(values.tolist(), errors.tolist(), strict=True):
        estimates = {
            f"measure_{j:02d}@0.05": {"value": v, "stderr": e, "n": 8, "kind": "lower bound", "cost": cost}
            for j, (v, e) in enumerate(zip(row, error, strict=True))
        }
        targets = {"test_error": round(0.1 + 0.01 * row[0], 4), "gap": row[1], "corrupted_error": row[2]}
        curves = [{"epoch": e, "train_loss": 1 / (e + 1), "test_error": 0.1} for e in range(5)]
        results.append({"targets": targets, "measures": estimates, "curves": curves, "versions": VERSIONS})
    return results


def timed(work: Callable[..., Any], *args: Any, times: int = 1) -> tuple[float, Any]:
    """The smallest CPU time in seconds over some repetitions, and the result."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        result = work(*args)
        best = min(best, time.process_time() - start)
    return best, result


def written(path: Path, planned: list[Cell], results: list[dict[str, Any]]) -> None:
    with Store.open(path) as store:
        store.add(planned)
        for cell, outcome in zip(planned, results, strict=True):
            store.record(cell.key, **outcome)


def states(path: Path) -> None:
    with Store.join(path) as store:
        store.states()


def checked(path: Path) -> None:
    Store.open(path).close()


def correlated(table: Table) -> None:
    findings(table, targets=["test_error"])


def read(path: Path) -> Table:
    with Store.join(path) as store:
        return store.table()


def measured(runs: int, measures: int, folder: Path, repeats: int) -> dict[str, float]:
    """The smallest times in seconds over some repetitions, and the size of the file."""
    planned, results = cells(runs), outcomes(runs, measures)
    best: dict[str, float] = {}
    for repeat in range(repeats):
        path = folder / f"{runs}-{repeat}.sqlite"
        start = time.perf_counter()
        took = {"insert": timed(written, path, planned, results)[0]}
        took["wall"] = time.perf_counter() - start
        took["open"] = timed(checked, path, times=3)[0]
        took["states"] = timed(states, path, times=10)[0]
        took["table"], table = timed(read, path, times=2)
        took["CSV"] = timed(export_table, table, folder / "table.csv")[0]
        took["correlate"] = timed(correlated, table)[0]
        took["report"], page = timed(write, path, folder / "report.html")
        assert len(table) == runs
        assert len(table.measures) == measures
        best = {name: min(seconds, best.get(name, seconds)) for name, seconds in took.items()}
        size = path.stat().st_size
        path.unlink()
    return best | {"MB": size / 1e6, "page": page.stat().st_size / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--measures", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the table there")
    options = parser.parse_args()
    sizes, measures = sorted(options.sizes), options.measures
    with tempfile.TemporaryDirectory() as folder:
        results = {size: measured(size, measures, Path(folder), options.repeats) for size in sizes}
    named = ["insert", "wall", "open", "states", "table", "CSV", "correlate", "report"]
    columns = [("insert, wall" if name == "wall" else name) + ", s" for name in named]
    head = ("runs", *columns, "runs/s", "estimates/s", "store, MB", "page, MB")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    where = f"{'two' if cores == 2 else cores} CPU cores, {platform.machine()}, {platform.system()}"
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, numpy {np.__version__}"
    load = (
        f"; a load of {os.getloadavg()[0]:.0f} from all work of the machine at the end"
        if hasattr(os, "getloadavg")
        else ""
    )
    about = f"{measures} measures a run, the best of {options.repeats}{load}"
    lines = [
        f"{datetime.date.today()}, {where}, {versions}; {about}",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for size, r in results.items():
        rates = [f"{many / r['wall']:.0f}" for many in (size, size * measures)]
        figures = [str(size), *(f"{r[name]:.3g}" for name in named), *rates, f"{r['MB']:.1f}", f"{r['page']:.1f}"]
        lines.append(f"| {' | '.join(figures)} |")
    lines += ["", f"Growth against the number of runs (1 is linear, the bar is {BAR:g}):", ""]
    for name in [*(n for n in named if n != "wall"), "page"]:
        steps = [(f"{a} to {b}", results[b][name] / results[a][name] / (b / a)) for a, b in pairwise(sizes)]
        words = ", ".join(f"{step} {growth:.2f}" for step, growth in steps)
        verdict = "met" if all(g <= BAR for _, g in steps) else "NOT MET"
        lines.append(f"- {name}: {words}: {'no bar' if name in ('correlate', 'report') else verdict}")
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
