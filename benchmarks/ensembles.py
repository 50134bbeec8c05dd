"""SharpBalance adds at most 1 % to the time of a convolutional network with SAM; processes help long members only.

First table: single steps of several runs in one process, in random order, on random images: 20 000 of 1 x 8 x 8 in
batches of 100 for MLPs, 6400 of 3 x 32 x 32 in batches of 128 for a ResNet-18 of width 8. `marked` has every row marked
as sharpness-aware: the work of SAM plus the masks. `mixed` has three quarters of the rows marked, as with random scores
and three members: three passes, on a quarter, three quarters and three quarters of the rows, where SAM has two on all.
Ratios are of a step to the mean of the SAM steps before and after it. `scores` is the cost of an exchange per member,
Fisher traces of all rows, in epochs of SAM. `whole` is the ratio of a run of the paper's 200 epochs with an exchange
after 100 to the same run with SAM: (100 + scores + 100 mixed) / 200, with a 95 % bootstrap interval. Times are CPU
times on one thread, so that other processes have little effect.

Second table: wall-clock times of complete calls, including files and the start of processes; it needs idle cores.
Medians and quartiles.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/ensembles.py [--steps 60] [--only cost|processes]
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from steppe.core.process_group import Workers
from steppe.data.dataset import Dataset, Splits
from steppe.ensembles import Ensemble, train_ensemble
from steppe.measures.fisher import fisher_traces
from steppe.training import Config
from steppe.training.evaluate import objective_of
from steppe.training.loop import Training

BAR, EPOCHS = 1.0, 200  # percent, and the length of the paper's runs
ROWS = 1200  # of the digits
CALLS = ((10, 2, 16, 30), (3, 4, 128, 20), (2, 4, 1024, 15))  # members, depth, width, epochs of the second table


def quartiles(values: list[float], form: str = ".3f") -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:{form}} ({low:{form}} to {high:{form}})"


def mlp(width: int, depth: int, **changes: object) -> Config:
    return settings(model="mlp", model_options={"width": width, "depth": depth}, **changes)


def settings(**changes: object) -> Config:
    base = Config(batch_size=100, evaluate_every=10_000, checkpoint_every=3600.0, device="cpu")
    return replace(base, **changes)  # type: ignore[arg-type]


def random_images(shape: tuple[int, ...] = (1, 8, 8), many: int = 20_000) -> Splits:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (many, *shape), generator=draws, dtype=torch.uint8)
    rows = Dataset("random", images, torch.randint(0, 10, (many,), generator=draws), tuple("0123456789"))
    return Splits(rows, rows.rows(slice(100)))


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


class Stepper:
    """A run that performs single steps, and restarts at the end of its epoch; it writes nothing."""

    def __init__(self, config: Config, splits: Splits):
        self.config, self.splits = config, splits
        self.begin()

    def begin(self) -> None:
        cpu = torch.device("cpu")
        self.training = Training(self.config, Path(), self.splits, Workers(), cpu)
        self.batches, self.left = self.training.batches.epoch(0, 0), len(self.training.batches.feed)
        self._step()  # the first one warms up

    def timed(self) -> float:
        if not self.left:
            self.begin()
        return timed(self._step)

    def _step(self) -> None:
        self.left -= 1
        batch = next(self.batches)
        self.training._begin_step()
        self.training._passes(batch)


def cost(rounds: int, folder: Path) -> list[str]:
    heads = ("model", "steps of each", "SAM, ms per step", "SAM again", "marked", "mixed", "scores, epochs", "whole")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    small, cifar = random_images(), random_images((3, 32, 32), 6400)
    resnet = settings(model="resnet18", model_options={"width": 8}, batch_size=128)
    cases = {"mlp 6 x 128": (mlp(128, 6), small, rounds), "mlp 6 x 512": (mlp(512, 6), small, rounds)}
    verdicts = []
    for model, (config, splits, times) in {**cases, "ResNet-18 of width 8": (resnet, cifar, rounds // 5)}.items():
        n = len(splits.train)
        np.save(folder / "all.npy", np.arange(n))
        np.save(folder / "some.npy", np.sort(np.random.default_rng(0).permutation(n)[: 3 * n // 4]))
        variants = {"again": None, "marked": "all.npy", "mixed": "some.npy"}
        sam = Stepper(config, splits)
        steppers = {
            k: Stepper(replace(config, sharp_rows=str(folder / f) if f else None), splits) for k, f in variants.items()
        }
        ratios: dict[str, list[float]] = {k: [] for k in variants}
        plain: list[float] = []
        for _ in range(times):
            for name in random.sample(sorted(variants), len(variants)):
                before, took, after = sam.timed(), steppers[name].timed(), sam.timed()
                ratios[name].append(2 * took / (before + after))
                plain += [before, after]
        scores = [scoring(sam.training, splits) / statistics.median(plain) for _ in range(3)]
        exchange = statistics.median(scores)
        draws = [statistics.median(random.choices(ratios["mixed"], k=times)) for _ in range(1000)]
        low, *_, high = statistics.quantiles([whole(m, exchange) for m in draws], n=40)
        middle = whole(statistics.median(ratios["mixed"]), exchange)
        cells = [
            model,
            str(times),
            quartiles([1e3 * t for t in plain], ".1f"),
            *(quartiles(ratios[k]) for k in variants),
        ]
        cells += [f"{exchange:.2f}", f"{middle:.3f} ({low:.3f} to {high:.3f})"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        verdicts.append(f"{model} {'met' if middle <= 1 + BAR / 100 else 'NOT MET'}")
    return [*lines, "", f"Bar of {BAR:g} % added to the whole: {', '.join(verdicts)}.", ""]


def scoring(training: Training, splits: Splits) -> float:
    """Seconds for the scores of as many rows as a batch has: the share of a step in an exchange."""
    model, rows, size = training.state.module, splits.train.rows(slice(1280)), training.config.batch_size
    took = timed(lambda: fisher_traces(objective_of(model.eval(), training.task, rows, None)))
    model.train()
    return took * size / len(rows)


def whole(mixed: float, scores: float) -> float:
    return (EPOCHS / 2 + scores + EPOCHS / 2 * mixed) / EPOCHS


def processes(rounds: int, folder: Path) -> list[str]:
    heads = ("members", "mlp", "steps", "one after the other, s", "processes")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for members, depth, width, epochs in CALLS:
        took: dict[str, list[float]] = {"sequence": [], "processes": []}
        for number in range(rounds):
            for way in random.sample(sorted(took), len(took)):
                config = mlp(width, depth, epochs=epochs, out=str(folder / f"{width}-{number}-{way}"))
                start = time.perf_counter()
                train_ensemble(config, Ensemble(members=members, strategy="deep+sam", how=way))  # type: ignore[arg-type]
                took[way].append(time.perf_counter() - start)
        ratios = [a / b for a, b in zip(took["processes"], took["sequence"], strict=True)]
        cells = [quartiles(took["sequence"], ".1f"), quartiles(ratios, ".2f")]
        lines.append(f"| {members} | {depth} x {width} | {epochs * ROWS // 100} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="steps of every kind")
    parser.add_argument("--rounds", type=int, default=5, help="of the second table")
    parser.add_argument("--only", choices=("cost", "processes"))
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    lines = [
        f"{datetime.date.today()}, CPU ({os.cpu_count()} cores, {torch.get_num_threads()} thread), torch "
        f"{torch.__version__}, {options.steps} steps of every kind, {options.rounds} rounds",
        "",
    ]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        if options.only in (None, "cost"):
            lines += cost(options.steps, Path(folder))
        if options.only in (None, "processes"):
            lines += processes(options.rounds, Path(folder))
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
