"""Feeding ResNet-18 with CIFAR on a GPU (shuffling, crops, flips, standardisation) costs less than 3 % of its step.

50 000 images of CIFAR's size (random bytes) are on the device. A round times equal numbers of batches from the feed
alone, steps alone (on one batch: SGD with momentum, bf16, channels last) and steps with the feed, in random order.
`alone` is the time of the feed as a share of the step. `added` is the slowdown of training by the feed; the bar applies
to it. `alone` can be smaller, because a feed that runs by itself keeps the host's caches. Medians and quartiles over
rounds; `added` is a mean with its standard error, because an eager step waits for the host, whose time varies by more
than the feed takes.

    PYTHONPATH=src python benchmarks/feeding.py [--rounds 150] [--batches 16] [--out FILE]

Without a GPU all sizes are small: a smoke test.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn

from steppe.data.augment import augmentation
from steppe.data.dataset import Dataset
from steppe.data.feed import BatchStream
from steppe.data.pixels import Standard
from steppe.nn.registry import build

Batch = tuple[Tensor, Tensor]
BAR = 3.0  # percent


def cifar_like(rows: int, device: str) -> Dataset:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (rows, 3, 32, 32), generator=draws, dtype=torch.uint8)
    return Dataset("random", images, torch.randint(0, 10, (rows,), generator=draws), tuple("0123456789")).to(device)


def endless(feed: BatchStream) -> Iterator[Batch]:
    """The batches of all epochs in sequence, including the shuffling."""
    for epoch in count():
        yield from feed.epoch(epoch)


def stepper(width: int, device: str, captured: bool, size: int) -> Callable[[Batch], None]:
    """A function that runs a training step on a batch; if captured, it replays one CUDA graph."""
    torch.manual_seed(0)
    model = build("resnet18", (3, 32, 32), 10, width=width).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)

    def step(batch: Batch) -> None:
        x, y = batch
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
        loss.backward()
        optimizer.step()

    if not captured:
        return step
    static = torch.zeros(size, 3, 32, 32, device=device), torch.zeros(size, dtype=torch.int64, device=device)
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(side_stream)
    optimizer.zero_grad(set_to_none=True)  # so that gradients lie in the graph's own memory
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(static)

    def replay(batch: Batch, _alive: object = (model, optimizer)) -> None:  # the graph holds addresses only
        for place, new in zip(static, batch, strict=True):
            place.copy_(new)
        graph.replay()

    return replay


def timed(work: Callable[[], object], times: int, gpu: bool) -> float:
    """Milliseconds per call, with the device idle before and after."""
    wait = torch.cuda.synchronize if gpu else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return 1e3 * (time.perf_counter() - start) / times


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def never_waits(feed: BatchStream) -> str:
    """Whether the feed makes batches without synchronising with the device, as CUDA reports it."""
    batches = feed.epoch(0)
    next(batches)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(10):
            next(batches)
    except RuntimeError as error:
        return f"**no**: {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "never"


@dataclass(frozen=True)
class Setting:
    width: int
    size: int
    names: tuple[str, ...] = ("crop", "flip")
    captured: bool = False


HEAD = (
    "ResNet-18 step",
    "batch",
    "augmentation",
    "feed, ms",
    "step, ms",
    "fed step, ms",
    "alone, %",
    "added, %",
    "waits",
)
SETTINGS = [
    Setting(64, 128),  # the bar is for these two
    Setting(64, 128, captured=True),
    Setting(64, 512),
    Setting(64, 128, ("crop-reflect", "flip")),
    Setting(64, 128, ("crop", "flip", "mixup")),
    Setting(64, 128, ("crop", "flip", "randaugment")),
]


def compared(setting: Setting, data: Dataset, rounds: int, batches: int) -> tuple[list[str], float]:
    """A row of the table, and the percentage that feeding adds to a step."""
    device = data.inputs.device.type
    feed = BatchStream(data, setting.size, 0, augmentation(setting.names, 10), Standard.of(data))
    source, step = endless(feed), stepper(setting.width, device, setting.captured, setting.size)
    fixed = next(source)
    works = {"feed": lambda: next(source), "step": lambda: step(fixed), "fed": lambda: step(next(source))}
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(rounds + 1):
        for name in random.sample(sorted(works), len(works)):
            took = timed(works[name], batches, device == "cuda")
            if round_:  # the first warms up
                times[name].append(took)
    alone = [100 * a / b for a, b in zip(times["feed"], times["step"], strict=True)]
    more = [100 * (a - b) / statistics.mean(times["step"]) for a, b in zip(times["fed"], times["step"], strict=True)]
    added, error = statistics.mean(more), statistics.stdev(more) / len(more) ** 0.5
    kind = f"{'one CUDA graph' if setting.captured else 'eager'}, width {setting.width}"
    figures = [*(quartiles(values) for values in (*times.values(), alone)), f"{added:.2f} ± {error:.2f}"]
    waits = never_waits(feed) if device == "cuda" else "not known"
    return [kind, str(setting.size), " + ".join(setting.names), *figures, waits], added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--batches", type=int, default=16, help="batches a measurement, as many as are made together")
    parser.add_argument("--out", type=Path, help="also write the table there")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else "CPU"
    rounds, batches = (options.rounds, options.batches) if gpu else (2, 2)
    data = cifar_like(50_000, "cuda") if gpu else cifar_like(512, "cpu")
    lines = [f"{datetime.date.today()}, {where}, torch {torch.__version__}, n = {rounds} rounds of {batches} batches\n"]
    lines += [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    print("\n".join(lines), flush=True)
    verdicts: list[str] = []
    for setting in SETTINGS if gpu else [Setting(4, 32)]:
        cells, added = compared(setting, data, rounds, batches)
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if gpu and setting in SETTINGS[:2]:
            met = "met" if added < BAR else "NOT MET"
            verdicts.append(f"Bar of {BAR:g} %, {cells[0]}, batch {cells[1]}, {cells[2]}: {met}, {added:.2f} %.")
    lines += ["", *verdicts]
    print("\n".join(lines[-len(verdicts) - 1 :]))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
