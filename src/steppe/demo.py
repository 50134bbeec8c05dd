"""Four methods on scikit-learn's digits, side by side and with error bars."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, median, stdev
from time import perf_counter
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .ball import Ball
from .measures import Eigenvalue, Loss, Objective, WorstCase
from .measures.run import measured
from .optim.named import build

METHODS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "sam": {"rho": 0.2},
    "asam": {"rho": 0.5},
    "frob-sam": {"rho": 0.01, "strength": 0.01},
}
TRAINING_ROWS, BATCH = 600, 50  # of 1797 rows: few enough that the methods can differ, and whole batches
RADIUS = 0.2  # of the ball in which sharpness is measured, whatever the method

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Run:
    """What one training run ended with."""

    accuracy: float  # percent of the test rows
    loss: float  # on all training rows
    sharpness: float  # also on all training rows, and the next one too
    curvature: float  # the largest eigenvalue of the Hessian
    passes: float  # forward and backward passes a step
    seconds: float


def digits() -> tuple[Rows, Rows]:
    """Training and test rows of the 8 x 8 digits, always the same split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the demo trains on scikit-learn's digits, and scikit-learn is missing: pip install scikit-learn")
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:TRAINING_ROWS], order[TRAINING_ROWS:]
    return (x[train], y[train]), (x[test], y[test])


def train(name: str, training: Rows, test: Rows, seed: int, epochs: int) -> Run:
    """One run: initial weights and the order of the batches follow from the seed, for every method alike."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, epochs)
    opt = build(name, base, model=model, seed=seed, **METHODS[name])
    x, y = training
    passes = steps = 0
    start = perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).view(-1, BATCH):
            for turn in opt.passes():
                turn.backward(cross_entropy(model(x[rows]), y[rows]))
                passes += 1
            opt.step()
            steps += 1
        schedule.step()
    seconds = perf_counter() - start
    with torch.no_grad():
        accuracy = 100 * (model(test[0]).argmax(1) == test[1]).float().mean()
    return Run(float(accuracy), *flatness(model, training), passes / steps, seconds)


def flatness(model: nn.Module, rows: Rows) -> tuple[float, float, float]:
    """The loss, its worst growth within RADIUS of the weights, and the largest eigenvalue of its Hessian."""
    plan = {"loss": Loss(), "sharpness": WorstCase(Ball(RADIUS)), "curvature": Eigenvalue()}
    found = measured(Objective(model, cross_entropy, rows), plan, progress=False)
    return found["loss"].value, found["sharpness"].value, found["curvature"].value


def compare(seeds: int, epochs: int, tick: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """One row a method; methods take turns within a seed, so that a slow minute slows all of them."""
    training, test = digits()
    runs: dict[str, list[Run]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        for name, done in runs.items():
            done.append(train(name, training, test, seed, epochs))
            tick()
    return [_row(name, done, runs["none"]) for name, done in runs.items()]


def _row(name: str, runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    row: dict[str, Any] = {"method": name, "options": dict(METHODS[name]), "passes": runs[0].passes}
    for field in ("accuracy", "loss", "sharpness", "curvature"):
        values = [getattr(run, field) for run in runs]
        row[field] = {"mean": mean(values), "stderr": stdev(values) / sqrt(len(values))}
    row["time"] = median(run.seconds / sgd.seconds for run, sgd in zip(runs, plain, strict=True))
    return row


def table(rows: Sequence[Mapping[str, Any]], seeds: int, epochs: int) -> Table:
    """The rows for people, with what the numbers are."""
    settings = "; ".join(" ".join([m, *(f"{k}={v}" for k, v in o.items())]) for m, o in METHODS.items() if o)
    caption = (
        f"Mean ± standard error over n = {seeds} seeds, one fixed split. {epochs} epochs on {TRAINING_ROWS} rows, "
        f"SGD with momentum 0.9 as base; {settings}. Sharpness: the most that the training loss grows within "
        f"distance {RADIUS} of the weights, as far as a search finds it; lambda_max: the largest eigenvalue of the "
        "training loss's Hessian. Time: training time over that of none (plain SGD), median over seeds."
    )
    out = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0),  # the widest table fits 80 columns
        show_edge=False,
        title="steppe on scikit-learn's digits",
        caption=caption,
        caption_justify="left",
    )
    for head in ("method", "test %", "train loss", "sharpness", "lambda_max", "passes", "time"):
        out.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    for row in rows:
        figures = [(row["accuracy"], 2), (row["loss"], 4), (row["sharpness"], 4), (row["curvature"], 2)]
        cells = [f"{v['mean']:.{digits}f} ± {v['stderr']:.{digits}f}" for v, digits in figures]
        out.add_row(row["method"], *cells, f"{row['passes']:g}", f"{row['time']:.2f}")
    return out


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m steppe.demo", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs a method, 2 or more (default 5)")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training rows (default 30)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    options = parser.parse_args(argv)
    if options.seeds < 2 or options.epochs < 1:
        parser.error("a standard error needs --seeds of 2 or more, and training --epochs of 1 or more")
    torch.set_num_threads(1)  # the net is too small to share
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=options.seeds * len(METHODS))
        rows = compare(options.seeds, options.epochs, lambda: progress.advance(task))
    if options.json:
        print(json.dumps({"seeds": options.seeds, "epochs": options.epochs, "rows": rows}, indent=2))
    else:
        Console().print(table(rows, options.seeds, options.epochs))


if __name__ == "__main__":
    main()
