"""Members train 4 to 9 times as fast with captured steps as with eager ones."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from gpu_networks import stand_in_for_missing
from gpu_timing import Asked, Page, spread

ABOUT = """
Members of an ensemble with SAM in bf16, batches of 128 images of CIFAR's size that are on the device, everything that a
step costs included. One after the other, eager and captured: a member's throughput does not depend on how many
there are, so one is timed. Each number is of a few steps on end, after a warm-up; n counts such stretches. Stacked
members were removed: captured steps, one after the other, are faster (263 against 181 thousand images / s).
"""
WARM, STEPS, MARKS = 8, 10, 3
SECONDS, END = 18.0, 56.0  # a model's rounds, and all of it
EAGER, CAPTURED = "one after the other, eager", "one after the other, captured"
MODELS = {
    "mlp of 3 x 512 on 3072 inputs": ("mlp", {"depth": 3, "width": 512}),
    "four convolutions of width 32, no norm layers": ("gpu_networks:small_conv", {"width": 32}),
    "ResNet-18 of width 16, BatchNorm": ("gpu_networks:channels_last_resnet18", {"width": 16}),
}
QUICK = {
    "mlp of 1 x 8": ("mlp", {"depth": 1, "width": 8}),
    "ResNet-18 of width 2, BatchNorm": (MODELS["ResNet-18 of width 16, BatchNorm"][0], {"width": 2}),
}


class Enough(Exception):
    """The steps that were to be timed are taken."""


@dataclass
class Marks:
    """Watches a run: notes the time after every so many steps and ends it after the last."""

    asked: Asked
    steps: int
    marks: int
    warm: int
    taken: int = 0
    times: list[float] = field(default_factory=list)

    def stepped(self, position: object, sums: object) -> None:
        self.taken += 1
        if self.taken >= self.warm and (self.taken - self.warm) % self.steps == 0:
            self.asked.wait()
            self.times.append(time.perf_counter())
            if len(self.times) > self.marks:
                raise Enough

    def recorded(self, record: Mapping[str, Any]) -> None:
        pass

    def seconds(self) -> list[float]:
        """Of every stretch between two marks."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def report(asked: Asked) -> Page:
    torch.backends.cudnn.benchmark = not asked.quick
    page = Page("ensembles", ABOUT, asked)
    note = stand_in_for_missing()
    if note:
        page.say(note, "")
    models = QUICK if asked.quick else MODELS
    for i, (name, model) in enumerate(models.items(), 1):
        _model(page, asked, name, *model, page.left(END * i / len(models)))
    return page


def _model(page: Page, asked: Asked, name: str, model: str, options: dict[str, int], left: float) -> None:
    from steppe.core.process_group import Workers
    from steppe.data.dataset import Splits
    from steppe.training import Config
    from steppe.training.loop import Training
    from steppe.training.problem import task_of
    from steppe.training.stopping import Wish

    size, warm, steps, marks = (8, 2, 1, 1) if asked.quick else (128, WARM, STEPS, MARKS)
    data = _rows(asked, size * (warm + steps * marks + 1))
    splits = Splits(data, data.rows(slice(size)))
    task = task_of(splits)
    base = Config(
        model=model, model_options=dict(options), batch_size=size, precision="bf16", lr=0.01, evaluate_every=10_000,
        epochs=2, checkpoint_every=3600.0, device=asked.device, capture=False,
    )  # fmt: skip

    def speeds(how: str) -> list[float]:
        config = replace(base, capture=how == CAPTURED)
        training = Training(config, Path(), splits, task, Workers(), torch.device(asked.device))
        watch = Marks(asked, steps, marks, warm)
        training.capture()
        _ended(lambda: training.run(Wish(), watch))
        return [size * steps / s for s in watch.seconds()]

    found: dict[str, list[float]] = {EAGER: [], CAPTURED: []}
    peaks: dict[str, float] = {}
    for _ in asked.within(3, SECONDS, left):
        for how in random.sample(list(found), len(found)):
            peaks[how] = asked.peak(lambda how=how: found[how].extend(speeds(how)))
    eager = statistics.median(found[EAGER])
    rows = [
        (how, spread(each, ",.0f"), len(each), f"{statistics.median(each) / eager:.2f}", f"{peaks[how]:.0f}")
        for how, each in found.items()
    ]
    page.table(f"Throughput of training: {name}", ("how", "images / s", "n", "/ eager", "peak MiB"), rows)


def _ended(work: Callable[[], object]) -> None:
    """Runs until the marks end it."""
    try:
        work()
    except Enough:
        return
    raise RuntimeError("the run ended before all of its steps were timed")


def _rows(asked: Asked, many: int):
    from feeding import cifar_like

    return cifar_like(many, asked.device)
