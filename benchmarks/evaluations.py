"""The loss of a small network at given weights costs at most 2 of its forward passes inside a measurement, 8 outside.

`objective.loss()` against the bare forward pass of the same network (eval mode, no gradient), on one thread. Every
round times all of them one after the other, `--calls` calls each, and gives the ratio to the forward pass of this
round; medians and quartiles over `--rounds` rounds. Outside a measurement every call opens a session of its own, which
saves and restores modes and random states; inside, one session is open, as in `steppe.measure`. Displaced: at w + d.
Beside them torch's own way, `torch.func.functional_call` at w + d, which gives no protection.

    python benchmarks/evaluations.py [--rounds 100] [--calls 100] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from traces import cpu

import steppe
from steppe.measures.session import session

ROWS = 64
NETS: dict[str, Callable[[], nn.Module]] = {
    "MLP, 3 layers of 64": lambda: dense(64, 3),
    "MLP, 2 layers of 32": lambda: dense(32, 2),
    "MLP with BatchNorm": lambda: nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)),
}
BARS = {"outside": 8.0, "inside": 2.0}  # of the first network


def dense(width: int, depth: int) -> nn.Module:
    hidden = [layer for _ in range(depth - 2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), *hidden, nn.Linear(width, 3))


def microseconds(task: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        task()
    return (time.perf_counter() - start) / calls * 1e6


def times(make: Callable[[], nn.Module], rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds of every way in every round."""
    torch.manual_seed(0)
    model = make().eval()
    x, y = torch.randn(ROWS, 8), torch.randint(3, (ROWS,))
    objective = steppe.Objective(model, cross_entropy, (x, y))
    d = objective.draw(0).normal() * 0.1
    names = list(objective.params)

    def forward() -> Tensor:
        with torch.no_grad():
            return model(x)

    def functional() -> float:
        with torch.no_grad():
            moved = torch._foreach_add(list(objective.params.values()), d.tensors)
            return float(cross_entropy(functional_call(model, dict(zip(names, moved, strict=True)), (x,)), y))

    assert abs(functional() - objective.loss(d)) < 1e-6
    found: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        here = {"forward": microseconds(forward, calls), "functional": microseconds(functional, calls)}
        here["outside"] = microseconds(objective.loss, calls)
        with session(model):
            here["inside"] = microseconds(objective.loss, calls)
            here["displaced"] = microseconds(lambda: objective.loss(d), calls)
        for way, spent in here.items():
            found.setdefault(way, []).append(spent)
    return {way: spent[1:] for way, spent in found.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ways = ("outside", "inside", "displaced", "functional")
    heads = ["network", "forward, us", "outside", "inside", "inside, displaced", "functional_call, displaced"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    verdicts = []
    for name, make in NETS.items():
        found = times(make, chosen.rounds, chosen.calls)
        cells = [name, f"{statistics.median(found['forward']):.1f}"]
        for way in ways:
            ratios = [a / b for a, b in zip(found[way], found["forward"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            cells.append(f"{middle:.2f} ({low:.2f} - {high:.2f})")
            if name == next(iter(NETS)) and way in BARS:
                met = "met" if middle <= BARS[way] else "MISSED"
                verdicts.append(f"| {name}, {way} | {BARS[way]:g} | {middle:.2f} | {met} |")
        lines.append(f"| {' | '.join(cells)} |")
    text = (
        f"# A loss over its forward pass\n\n{datetime.date.today()}, {cpu()}, one thread of a {os.cpu_count()}-core "
        f"machine with other work, torch {torch.__version__}, float32, {ROWS} rows, n = {chosen.rounds} rounds of "
        f"{chosen.calls} calls; ratios to the forward pass, medians and quartiles.\nRepeat with `python "
        f"benchmarks/evaluations.py --rounds {chosen.rounds} --calls {chosen.calls}`.\n\n"
        + "\n".join(lines)
        + "\n\n| bar | at most | measured | |\n|---|---|---|---|\n"
        + "\n".join(verdicts)
        + "\n"
    )
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
