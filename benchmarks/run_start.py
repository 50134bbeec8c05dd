"""On a small CPU a worker of a fork server costs 0.1 CPU seconds, one of its own 2.5, and the rows of a run up to 0.6.

Two costs that a run pays before its first step, in CPU seconds, medians and quartiles over `--rounds`, one thread:

- The process: a worker imports torch, steppe and torch's compiler, which the first step of any optimizer imports.
  Spawned, each worker imports them; from a fork server (`Local(start="forkserver")`) the server does, once.
- The rows: 50 000 + 10 000 images of CIFAR-10's size (random bytes, from files) are read, prepared as the settings say,
  digested for run.yaml, and counted for their means; a run of a study asks for them twice, to train and to evaluate.
  The seed is another for each run, so validation rows and label noise are drawn again.

    python benchmarks/run_start.py [--rounds 9] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import torch
from traces import cpu

from steppe._util.processes import Lost, Pool
from steppe.data.registry import loaded_once
from steppe.studies.engines.local import PRELOADED
from steppe.training import Config
from steppe.training.problem import data_of, task_of

SETTINGS: dict[str, dict[str, float]] = {
    "all rows": {},
    "validation 0.1": {"validation": 0.1},
    "validation 0.1, label noise 0.4": {"validation": 0.1, "label_noise": 0.4},
}
WORKERS = 2


def imported(job: int) -> float:
    """What a worker imports before its first run, and the CPU seconds that this process has taken so far."""
    for name in PRELOADED:
        __import__(name)
    time.sleep(0.2)  # so that the other worker gets a job of its own
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def of_processes(start: str) -> float:
    """CPU seconds per worker; those of a fork server are paid once and are those of one spawned worker."""
    with Pool(imported, [{}] * WORKERS, start, PRELOADED) as pool:
        answers = [answer for _, answer in pool.results(deque(range(WORKERS)), lambda: False)]
    return statistics.mean(answer for answer in answers if not isinstance(answer, Lost))


def write_like_cifar(folder: Path, rows: int) -> None:
    draws = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = draws.integers(0, 256, (rows, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / f"{name}.bin")


def of_rows(root: Path, settings: dict[str, float], seed: int) -> float:
    """CPU seconds of the rows of one run."""
    start = time.process_time()
    config = Config(data="cifar10", data_root=str(root), seed=seed, **settings)  # type: ignore[arg-type]
    splits = data_of(config)
    task_of(splits)
    assert splits.digest
    data_of(config)
    return time.process_time() - start


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} - {high:.2f})"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=10_000, help="in each of six files")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_like_cifar(Path(folder, "cifar-10-batches-bin"), chosen.rows)
        for _ in range(chosen.rounds):
            for start in ("spawn", "forkserver"):
                found.setdefault(f"process, {start}", []).append(of_processes(start))
            for name, settings in SETTINGS.items():
                with loaded_once():
                    for seed, which in enumerate(("first", "later", "later")):
                        spent = of_rows(Path(folder), settings, seed)
                        found.setdefault(f"rows, {name}, {which} run of a worker", []).append(spent)
    lines = ["| cost | CPU seconds |", "|---|---|", *(f"| {name} | {quartiles(v)} |" for name, v in found.items())]
    text = (
        f"# What a run costs before it trains\n\n{datetime.date.today()}, {cpu()}, one thread of a "
        f"{os.cpu_count()}-core machine with other work, torch {torch.__version__}, n = {chosen.rounds} rounds, "
        f"medians and quartiles; files in the page cache.\n"
        f"Repeat with `python benchmarks/run_start.py --rounds {chosen.rounds}`.\n\n" + "\n".join(lines) + "\n"
    )
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
