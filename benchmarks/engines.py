"""A pool of small networks one by one and all at once: processor time of a whole study without measures, one thread.

Sixteen networks of the digits study, 10 epochs: seeds of one method, seeds of two methods, and four of everything.
Medians and ranges of rounds, in turns.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engines.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from steppe.studies.embedded import DIGITS
from steppe.studies.engines import Serial, Stacked
from steppe.studies.plan import Study
from steppe.studies.run import run

SAM = {"method": "sam", "rho": 0.1}
POOLS: dict[str, dict[str, list[Any]]] = {
    "sam, 16 seeds": {"method": [SAM], "seed": list(range(16))},
    "none and sam, 8 seeds": {"method": ["none", SAM], "seed": list(range(8))},
    "none and sam, 4 learning rates, 2 seeds": {
        "method": ["none", SAM], "lr": [0.02, 0.05, 0.1, 0.15], "seed": [0, 1],
    },
}  # fmt: skip


def seconds(grid: dict[str, list[Any]], engine: Serial | Stacked) -> float:
    """The processor's time for a study in a fresh folder."""
    base = {**DIGITS["base"], "epochs": 10, "corruptions": [], "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        study = Study.of({"base": base, "grid": grid, "measures": [], "targets": ["test_error"], "out": folder}, "pool")
        start = time.process_time()
        found = run(study, engine, progress=False)
        assert found.done == 16, found.failures
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    path = Path(__file__).parent / "results" / f"engines_cpu_{datetime.date.today()}.md"
    lines = [
        f"Written by `benchmarks/engines.py`, {datetime.date.today()}, one thread of an x86 CPU, torch "
        f"{torch.__version__}, n = {rounds} rounds.\n",
        "| 16 networks | one by one, s | stacked, s | ratio, median (range) |",
        "|---|---|---|---|",
    ]
    for name, grid in POOLS.items():
        took = [(seconds(grid, Serial()), seconds(grid, Stacked())) for _ in range(rounds + 1)][1:]
        ratios = [b / a for a, b in took]
        alone, together = (statistics.median(side) for side in zip(*took, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {name} | {alone:.1f} | {together:.1f} | {spread} |")
        print(lines[-1], flush=True)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
