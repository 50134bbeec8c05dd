"""Many small members train fastest with stacked weights, where their layers allow it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_networks import stand_in_for_missing
from gpu_timing import Asked, Page, spread

ABOUT = """
Members of an ensemble with SAM in bf16, batches of 128 images of CIFAR's size that are on the device, everything that a
step costs included. One after the other, eager and captured: a member's throughput does not depend on how many
there are, so one is timed. Stacked: all members' weights are one tensor, and each pass is one for all of them; where
they have convolutions, a recorded pass has a branch a member instead, and grouped convolutions are beside it to
compare. Models x images / s counts a batch of every member at every step. Each number is of a few steps on end, after a
warm-up; n counts such stretches.
"""
MEMBERS = (4, 10)
WARM, STEPS, MARKS = 8, 10, 3
SECONDS, END = 18.0, 56.0  # a model's rounds, and all of it
STACKED, BRANCHES, GROUPED = "stacked", "stacked, a branch a member", "stacked, grouped convolutions"
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
    from steppe.data.dataset import Splits
    from steppe.ensembles import pass_of_all
    from steppe.ensembles import stacked as at_once
    from steppe.measures.workers import Workers
    from steppe.training import Config
    from steppe.training.loop import Training, follow
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

    def begun(config: Config) -> tuple[Training, Any, Marks]:
        training = Training(config, Path(), splits, task, Workers(), torch.device(asked.device))
        watch = Marks(asked, steps, marks, warm)
        return training, training.asking(Wish(), watch, []), watch

    def alone(captured: bool) -> list[float]:
        training, asking, watch = begun(replace(base, capture=captured))
        training.capture()
        _ended(lambda: follow(asking, training.seen))
        return [size * steps / s for s in watch.seconds()]

    def together(members: int, branches: bool) -> list[float]:
        runs = [begun(replace(base, seed=i, capture=True)) for i in range(members)]
        with ExitStack() as stack:
            stack.enter_context(patch.object(pass_of_all, "side_by_side", lambda model: branches))
            _ended(lambda: at_once._drive([(training, asking) for training, asking, _ in runs], stack))
        return [members * size * steps / s for s in runs[0][2].seconds()]

    members = (2,) if asked.quick else MEMBERS
    eager, captured = "one after the other, eager", "one after the other, captured"
    ways: dict[tuple[object, str], Callable[[], list[float]]] = {
        ("any", eager): lambda: alone(False),
        ("any", captured): lambda: alone(True),
    }
    stacked = {STACKED: False}
    if asked.gpu and pass_of_all.side_by_side(begun(base)[0].trainee.bare):
        stacked = {BRANCHES: True, GROUPED: False}
    for k, (how, branches) in product(members, stacked.items()):
        ways[k, how] = partial(together, k, branches)
    found: dict[tuple[object, str], list[float]] = {key: [] for key in ways}
    refused: dict[tuple[object, str], str] = {}
    peaks: dict[tuple[object, str], float] = {}
    for _ in asked.within(3, SECONDS, left):
        for key in random.sample(list(ways), len(ways)):
            if key not in refused:
                try:
                    peaks[key] = asked.peak(lambda key=key: found[key].extend(ways[key]()))
                except ValueError as error:
                    refused[key] = str(error)
    ideal = {how: statistics.median(found["any", how]) for how in (eager, captured)}
    rows: list[tuple[object, ...]] = []
    for (count, how), speeds in found.items():
        if (count, how) in refused:
            rows.append((count, how, f"refused: {refused[count, how]}", 0, "", "", ""))
            continue
        shares = [f"{statistics.median(speeds) / ideal[h]:.2f}" for h in (eager, captured)]
        rows.append((count, how, spread(speeds, ",.0f"), len(speeds), *shares, f"{peaks[count, how]:.0f}"))
    heads = (
        "members",
        "how",
        "models x images / s",
        "n",
        "/ one after the other, eager",
        "/ ... captured",
        "peak MiB",
    )
    page.table(f"Throughput of training: {name}", heads, rows)
    for k in members:
        speeds = {how: found[n, how] for n, how in found if n in (k, "any") and found[n, how]}
        best = max(speeds, key=lambda how: statistics.median(speeds[how]))
        page.say(f"- {k} members: {best} is the fastest.")
    page.say("")


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
