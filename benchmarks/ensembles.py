"""SharpBalance adds at most 1 % to the time of the same ensemble with SAM, and which way to train members is fastest.

First table: steps of runs under way in one process, taken in turns, on 20 000 random images of 8 x 8. `marked` has
every row marked as sharpness-aware: the same work as SAM, and on top of it the masks and the choice of rows. `mixed`
has three quarters of the rows marked, as random scores and three members would have it; its two parts are one forward
pass more than SAM's. Ratios are of a step to the mean of the SAM steps before and after it. `scores` is what an
exchange costs a member, Fisher traces of all rows, in epochs of SAM. `added` is what SharpBalance costs over SAM in the
paper's 200 epochs with one exchange after 100, apart from fewer SAM rows: (marked - 1) / 2 + scores / 200; until the
exchange its steps are SAM's.

Second table: a step of every member, one after the other and all at once with stacked weights, in turns. Times in both
tables are of the processor, on one thread, so that what else runs on the machine counts little. Third table: whole
calls by the clock, processes with their start included, on a machine that should have nothing else to do. Medians and
quartiles.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/ensembles.py [--steps 60] [--only cost|stacked|processes]
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from steppe.data.dataset import Dataset, Splits
from steppe.ensembles import Ensemble, train_ensemble
from steppe.ensembles.stacked import _seen
from steppe.measures.fisher import fisher_traces
from steppe.measures.workers import Workers
from steppe.training import Config
from steppe.training.flatness import objective_of
from steppe.training.loop import Training
from steppe.training.problem import task_of
from steppe.training.progress import Silent
from steppe.training.stopping import Wish

BAR, EPOCHS = 1.0, 200  # percent, and the length of the paper's runs
ROWS, MANY = 1200, 20_000  # of the digits, and of random images


def quartiles(values: list[float], form: str = ".3f") -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def settings(width: int, depth: int, **changes: object) -> Config:
    options = {"width": width, "depth": depth}
    base = Config(model_options=options, batch_size=100, evaluate_every=10_000, checkpoint_every=3600.0, device="cpu")
    return replace(base, **changes)  # type: ignore[arg-type]


def random_images() -> Splits:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (MANY, 1, 8, 8), generator=draws, dtype=torch.uint8)
    rows = Dataset("random", images, torch.randint(0, 10, (MANY,), generator=draws), tuple("0123456789"))
    return Splits(rows, rows.rows(slice(100)))


class Stepper:
    """A run under way that takes a step when told to; nothing is written."""

    def __init__(self, config: Config, splits: Splits, passes: int):
        self.training = Training(config, Path(), splits, task_of(splits), Workers(), torch.device("cpu"))
        self.asking = self.training.asking(Wish(), Silent(), [])
        self.rows, self.passes = next(self.asking), passes

    def timed(self) -> float:
        start = time.process_time()
        for _ in range(self.passes):
            self.rows = self.asking.send(self.training.seen(self.rows))
        return time.process_time() - start


def cost(rounds: int, folder: Path) -> tuple[list[str], bool]:
    np.save(folder / "all.npy", np.arange(MANY))
    np.save(folder / "some.npy", np.sort(np.random.default_rng(0).permutation(MANY)[: 3 * MANY // 4]))
    variants = {"again": (None, 2), "marked": ("all.npy", 2), "mixed": ("some.npy", 3)}
    heads = ("model", "SAM, ms a step", "SAM again / SAM", "marked / SAM", "mixed / SAM", "scores, epochs", "added, %")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    splits, met = random_images(), True
    for width, depth in ((128, 6), (512, 6)):
        sam = Stepper(settings(width, depth), splits, 2)
        steppers = {
            k: Stepper(settings(width, depth, sharp_rows=str(folder / f) if f else None), splits, n)
            for k, (f, n) in variants.items()
        }
        ratios: dict[str, list[float]] = {k: [] for k in variants}
        plain: list[float] = []
        for number in range(min(rounds, MANY // 100 // 3 - 2)):
            for name in random.sample(sorted(variants), len(variants)):
                before, took, after = sam.timed(), steppers[name].timed(), sam.timed()
                if number:  # the first ones warm up
                    ratios[name].append(2 * took / (before + after))
                    plain += [before, after]
            sam = Stepper(settings(width, depth), splits, 2) if number % 25 == 24 else sam  # before its epoch ends
        task, step = sam.training.task, statistics.median(plain)
        scores = []
        for _ in range(3):
            start = time.process_time()
            fisher_traces(objective_of(sam.training.trainee.bare.eval(), task, splits.train, None))
            scores.append((time.process_time() - start) / (step * MANY / 100))
        added = 100 * ((statistics.median(ratios["marked"]) - 1) / 2 + statistics.median(scores) / EPOCHS)
        cells = [f"mlp {depth} x {width}", quartiles([1e3 * t for t in plain], ".2f")]
        cells += [*(quartiles(ratios[k]) for k in variants), quartiles(scores, ".2f"), f"{added:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        met &= added <= BAR
    return lines, met


def stacked(steps: int, folder: Path) -> list[str]:
    heads = ("strategy", "members", "mlp", "one after the other, ms", "stacked / one after the other")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    splits = random_images()
    np.save(folder / "some.npy", np.sort(np.random.default_rng(0).permutation(MANY)[: 3 * MANY // 4]))
    cases = [("deep", 1, m, w) for m, w in ((3, 16), (10, 16), (30, 16), (3, 128), (10, 128), (3, 512), (10, 512))]
    cases += [("deep+sam", 2, m, w) for m, w in ((3, 16), (10, 16), (30, 16), (10, 128))]
    cases += [("sharpbalance, mixed", 3, m, w) for m, w in ((3, 16), (10, 16), (10, 128))]
    for strategy, passes, members, width in cases:
        changes = {1: {"method": "none"}, 2: {}, 3: {"sharp_rows": str(folder / "some.npy")}}[passes]
        runs = [Stepper(settings(width, 2, seed=i, **changes), splits, passes) for i in range(members)]
        ratios, alone = [], []
        for number in range(min(steps, 90)):
            single = sum(run.timed() for run in runs)
            start = time.process_time()
            for _ in range(passes):
                for run, answer in zip(runs, _seen([r.training for r in runs], [r.rows for r in runs]), strict=True):
                    run.rows = run.asking.send(answer)
            together = time.process_time() - start
            if number:
                ratios.append(together / single)
                alone.append(1e3 * single)
        cells = (strategy, str(members), f"2 x {width}", quartiles(alone, ".1f"), quartiles(ratios, ".2f"))
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def processes(rounds: int, folder: Path) -> list[str]:
    lines = ["| members | mlp | steps | one after the other, s | processes / one after the other |", "|---" * 5 + "|"]
    for members, width, epochs in ((2, 128, 30), (2, 1024, 30)):
        took: dict[str, list[float]] = {"sequence": [], "processes": []}
        for number in range(rounds):
            for way in random.sample(sorted(took), 2):
                config = settings(width, 4, epochs=epochs, out=str(folder / f"{width}-{number}-{way}"))
                start = time.perf_counter()
                train_ensemble(config, Ensemble(members=members, strategy="deep+sam", how=way))  # type: ignore[arg-type]
                took[way].append(time.perf_counter() - start)
        ratios = [a / b for a, b in zip(took["processes"], took["sequence"], strict=True)]
        cells = [quartiles(took["sequence"], ".2f"), quartiles(ratios, ".2f")]
        lines.append(f"| {members} | 4 x {width} | {epochs * ROWS // 100} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="steps of every kind")
    parser.add_argument("--rounds", type=int, default=5, help="of whole calls")
    parser.add_argument("--only", choices=("cost", "stacked", "processes"))
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    lines = [
        f"{datetime.date.today()}, CPU ({os.cpu_count()} cores, {torch.get_num_threads()} thread), torch "
        f"{torch.__version__}, {options.steps} steps of every kind, {options.rounds} rounds of calls",
        "",
    ]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        if options.only in (None, "cost"):
            table, met = cost(options.steps, Path(folder))
            lines += [*table, "", f"Bar of {BAR:g} % added: {'met' if met else 'NOT MET'}.", ""]
        if options.only in (None, "stacked"):
            lines += [*stacked(options.steps, Path(folder)), ""]
        if options.only in (None, "processes"):
            lines += processes(options.rounds, Path(folder))
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
