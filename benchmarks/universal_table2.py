"""Table 2 of the universal-SAM paper, its column CIFAR10-S: seven methods on the first 5000 rows of CIFAR-10.

    PYTHONPATH=src python benchmarks/universal_table2.py STAGE --data npz:FILE --out FILE.csv [--seeds 2]

The recipe is appendix O's: ResNet-18, SGD with momentum 0.9 and weight decay 5e-4, batch 128, 50 epochs, learning rate
0.1 times 0.25 every 10 epochs, crops and flips. STAGE `sweep` trains every cell of appendix O's grids with a tenth of
the rows kept for validation. STAGE `final` trains each method's best cell by mean validation accuracy on all 5000 rows.
STAGE `table` prints what the file holds. One row is appended per finished run; a second call continues with what is
missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from steppe.training import Config, train

PAPER = {
    "none": 53.33,
    "sam": 51.96,
    "asam": 62.00,
    "ssam-f": 50.45,
    "trace-sam": 61.67,
    "frob-sam": 61.82,
    "det-sam": 63.92,
}
FIXED = [
    ("none", {}),
    ("sam", {"rho": 0.05}),
    ("asam", {"rho": 0.5, "eta": 0.01}),
    ("ssam-f", {"rho": 0.1, "sparsity": 0.5, "samples": 16, "every": 39}),  # a new mask per epoch
    ("trace-sam", {"rho": 0.01, "n": 1}),
]
SWEPT = [("det-sam", {"rho": 1.0, "strength": s}) for s in (0.01, 0.1, 1.0)] + [
    ("frob-sam", {"rho": rho, "strength": lam / 4, "n": n})  # the released code's lambda is 4 times the strength
    for n in (2, 10)
    for rho in (0.005, 0.01)
    for lam in (0.0001, 0.001, 0.005)
]
MODEL = "gpu_networks:channels_last_resnet18"  # bf16 steps take 6 ms instead of 11
Cell = tuple[str, dict[str, Any]]


def run(
    data: str, method: str, options: dict[str, Any], seed: int, validation: float, precision: Any
) -> dict[str, Any]:
    """One training run and what it ended with."""
    start = time.perf_counter()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a checkpoint is written after every epoch
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        config = Config(
            data=data, model=MODEL, method=method, method_options=options, lr=0.1, momentum=0.9, weight_decay=5e-4,
            epochs=50, batch_size=128, schedule="multistep", milestones=[0.2, 0.4, 0.6, 0.8], decay=0.25,
            augment=["crop", "flip"], validation=validation, seed=seed, precision=precision, evaluate_every=50,
            checkpoint_every=3600.0, on_nonfinite="late", out=f"{folder}/run",
        )  # fmt: skip
        last = train(config, progress=False).records[-1]
    numbers = {k: last.get(k) for k in ("train_accuracy", "validation_accuracy", "test_accuracy", "train_loss")}
    return numbers | {"seconds": round(time.perf_counter() - start, 1)}


def rows_of(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def append(file: Path, row: dict[str, Any]) -> None:
    fresh = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, list(row))
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def chosen(rows: list[dict[str, str]], stage: str) -> list[Cell]:
    """The cells of a stage: all of the grids, or each method's best by mean validation accuracy."""
    if stage == "sweep":
        return SWEPT
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["stage"] == "sweep":
            scores[row["method"], row["options"]].append(float(row["validation_accuracy"]))
    best: dict[str, tuple[float, str]] = {}
    for (method, options), values in scores.items():
        best[method] = max(best.get(method, (-1.0, "")), (statistics.fmean(values), options))
    return FIXED + [(method, json.loads(options)) for method, (_, options) in sorted(best.items())]


def table(rows: list[dict[str, str]]) -> None:
    """Prints accuracies, differences to the plain optimizer paired by seed, and seconds per run."""
    groups: dict[tuple[str, str, str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        groups[row["stage"], row["method"], row["options"], row["precision"]][row["seed"]] = row
    print("| stage | method | options | precision | accuracy, % | n | minus none | s per run (median) | paper, n = 1 |")
    print("|---" * 9 + "|")
    for (stage, method, options, precision), runs in sorted(groups.items()):
        plain = groups.get((stage, "none", "{}", precision), {}) if method != "none" else {}
        values = [accuracy(row) for row in runs.values()]
        differences = [accuracy(row) - accuracy(plain[seed]) for seed, row in runs.items() if seed in plain]
        seconds = statistics.median(float(row["seconds"]) for row in runs.values())
        print(
            f"| {stage} | {method} | `{options}` | {precision} | {mean_and_error(values)} | {len(values)} | "
            f"{mean_and_error(differences)} | {seconds:.1f} | {PAPER[method]} |"
        )


def accuracy(row: dict[str, str]) -> float:
    return 100 * float(row["test_accuracy" if row["stage"] == "final" else "validation_accuracy"])


def mean_and_error(values: list[float]) -> str:
    """The mean with its standard error in parentheses."""
    if not values:
        return ""
    error = f" ({statistics.stdev(values) / len(values) ** 0.5:.2f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["sweep", "final", "table"])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "float32"])
    parser.add_argument("--most-samples", type=int, default=10, help="leave out cells with more draws per step")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after so many")
    args, start = parser.parse_args(), time.perf_counter()
    if args.stage == "table":
        table(rows_of(args.out))
        return 0
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for seed in range(args.seeds):
        for method, options in chosen(rows_of(args.out), args.stage):
            if (args.methods and method not in args.methods) or options.get("n", 1) > args.most_samples:
                continue
            row = {"stage": args.stage, "method": method, "options": json.dumps(options), "seed": seed}
            row |= {"precision": args.precision}
            done = [{k: r[k] for k in row} for r in rows_of(args.out)]
            if {k: str(v) for k, v in row.items()} in done:
                continue
            if time.perf_counter() - start > args.seconds:
                print("time is up", file=sys.stderr)
                return 0
            validation = 0.1 if args.stage == "sweep" else 0.0
            result = run(args.data, method, options, seed, validation, args.precision)
            append(args.out, row | result | {"machine": machine, "torch": torch.__version__, "date": date.today()})
            print(method, options, seed, result, file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
