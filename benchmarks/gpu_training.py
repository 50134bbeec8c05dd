"""Training on a GPU: members of an ensemble with eager and captured steps, and 200 epochs of ResNet-18 with SAM.

Captured steps train members 4 to 9 times as fast as eager ones. The time of 200 epochs is projected from measured ones.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from feeding import cifar_like
from gpu_networks import channels_last_resnet18, loss_fn, stand_in_for_missing
from gpu_peers import Loop
from gpu_timing import Page, Settings, ratios, spread

END = 56.0  # seconds per theme

# -- ensembles --------------------------------------------------------------------------------------------------------

ENSEMBLES = """
Members of an ensemble with SAM in bf16, batches of 128 images of CIFAR's size on the device; times include everything
in a step. Members train one after the other, so the throughput does not depend on their number and one member is
timed. Each number is from a few consecutive steps after a warm-up; n counts these measurements. There are no stacked
members: captured steps, one member after the other, are faster (263 against 181 thousand images / s).
"""
WARM, STEPS, MARKS = 8, 10, 3
SECONDS = 18.0  # for the rounds of a model
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


class TimedAll(Exception):
    """All steps to be timed have run."""


@dataclass
class Marks:
    """Observer of a run: records the time after every `steps` steps, and ends the run after the last mark."""

    settings: Settings
    steps: int
    marks: int
    warm: int
    done: int = 0
    times: list[float] = field(default_factory=list)

    def stepped(self, position: object, sums: object) -> None:
        self.done += 1
        if self.done >= self.warm and (self.done - self.warm) % self.steps == 0:
            self.settings.wait()
            self.times.append(time.perf_counter())
            if len(self.times) > self.marks:
                raise TimedAll

    def recorded(self, record: Mapping[str, Any]) -> None:
        pass

    def seconds(self) -> list[float]:
        """Seconds between successive marks."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def ensembles(settings: Settings) -> Page:
    """Writes the page of the theme."""
    torch.backends.cudnn.benchmark = not settings.quick
    page = Page("ensembles", ENSEMBLES, settings)
    note = stand_in_for_missing()
    if note:
        page.say(note, "")
    models = QUICK if settings.quick else MODELS
    for i, (name, model) in enumerate(models.items(), 1):
        _model(page, settings, name, *model, page.left(END * i / len(models)))
    return page


def _model(page: Page, settings: Settings, name: str, model: str, options: dict[str, int], left: float) -> None:
    from steppe.core.process_group import Workers
    from steppe.data.dataset import Splits
    from steppe.training import Config
    from steppe.training.loop import Training
    from steppe.training.stopping import StopRequest

    size, warm, steps, marks = (8, 2, 1, 1) if settings.quick else (128, WARM, STEPS, MARKS)
    data = cifar_like(size * (warm + steps * marks + 1), settings.device)
    splits = Splits(data, data.rows(slice(size)))
    base = Config(
        model=model, model_options=dict(options), batch_size=size, precision="bf16", lr=0.01, evaluate_every=10_000,
        epochs=2, checkpoint_every=3600.0, device=settings.device, capture=False,
    )  # fmt: skip

    def speeds(how: str) -> list[float]:
        config = replace(base, capture=how == CAPTURED)
        training = Training(config, Path(), splits, Workers(), torch.device(settings.device))
        watch = Marks(settings, steps, marks, warm)
        training.capture()
        _run_until_timed(lambda: training.run(StopRequest(), watch))
        return [size * steps / s for s in watch.seconds()]

    throughput: dict[str, list[float]] = {EAGER: [], CAPTURED: []}
    peaks: dict[str, float] = {}
    for _ in settings.within(3, SECONDS, left):
        for how in random.sample(list(throughput), len(throughput)):
            peaks[how] = settings.peak(lambda how=how: throughput[how].extend(speeds(how)))
    eager = statistics.median(throughput[EAGER])
    rows = [
        (how, spread(each, ",.0f"), len(each), f"{statistics.median(each) / eager:.2f}", f"{peaks[how]:.0f}")
        for how, each in throughput.items()
    ]
    page.table(f"Throughput of training: {name}", ("how", "images / s", "n", "/ eager", "peak MiB"), rows)


def _run_until_timed(work: Callable[[], object]) -> None:
    try:
        work()
    except TimedAll:
        return
    raise RuntimeError("the run ended before all of its steps were timed")


# -- epochs -----------------------------------------------------------------------------------------------------------

EPOCHS_ABOUT = """
The SAM recipe on data of CIFAR-10's size (50 000 random images): ResNet-18 of width 64, batch 128, crop and flip, bf16,
channels last, SGD with momentum. Epochs are complete: all variants use the same feed, which shuffles, augments and
standardises on the device. steppe runs its training loop with captured steps, a record and a checkpoint at the end;
no variant evaluates. The others are bare loops that write nothing. One epoch of each per round; of SGD a third of an
epoch, whose time counts three times.
"""
EPOCHS, WIDTH, BATCH, ROWS = 200, 64, 128, 50_000
OURS, SGD = "steppe sam, training loop, captured", "SGD, eager loop"
LOOP = "SAM, per-parameter loop (reimplemented)"
SHARES = {OURS: 1, LOOP: 1, SGD: 3}  # one of so many parts of an epoch is run


def epochs(settings: Settings) -> Page:
    """Writes the page of the theme."""
    torch.backends.cudnn.benchmark = not settings.quick
    page = Page("epochs", EPOCHS_ABOUT, settings)
    note = stand_in_for_missing()
    if note:
        page.say(note, "")
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(settings, Path(folder))
        works = runs.epochs
        seconds_of: dict[str, list[float]] = {name: [] for name in works}
        works[OURS](0)  # captures its steps and chooses algorithms
        for i in settings.within(4, 35.0, page.left(END)):
            for name in random.sample(sorted(works), len(works)):
                settings.wait()
                start = time.perf_counter()
                works[name](i + 1)
                settings.wait()
                seconds_of[name].append(runs.times[name] * (time.perf_counter() - start))
    why = runs.why()
    rows = [
        (
            name + (f" (eager: {why})" if name == OURS and why else ""),
            spread(seconds),
            spread(runs.step_seconds.seconds[1:]) if name == OURS else "",
            len(seconds),
            spread(ratios(seconds_of[LOOP], seconds)),
            f"{EPOCHS * statistics.median(seconds) / 60:.1f} "
            f"({EPOCHS * min(seconds) / 60:.1f} - {EPOCHS * max(seconds) / 60:.1f})",
        )
        for name, seconds in seconds_of.items()
    ]
    projected = f"minutes of {EPOCHS} epochs, projected (fastest, slowest)"
    heads = ("training", "s per epoch", "of these in steps", "n", "per-parameter loop / this", projected)
    page.table(f"Epochs of {runs.steps} steps", heads, rows)
    ours, loop = (EPOCHS * statistics.median(seconds_of[name]) / 60 for name in (OURS, LOOP))
    page.say(f"Projected from measured epochs: {ours:.1f} minutes with steppe, {loop:.1f} with the loop.", "")
    return page


@dataclass
class StepSeconds:
    """Observer of a run: the seconds of the steps of each epoch, from its record."""

    seconds: list[float] = field(default_factory=list)

    def stepped(self, position: object, sums: object) -> None:
        pass

    def recorded(self, record: Mapping[str, Any]) -> None:
        self.seconds.append(record["seconds"])


@dataclass(frozen=True)
class Runs:
    """The variants, each as a function that runs an epoch or part of one."""

    epochs: Mapping[str, Callable[[int], object]]
    step_seconds: StepSeconds  # of steppe, without the end of the epoch
    why: Callable[[], str | None]  # the reason why steppe's steps are not captured
    steps: int  # per epoch
    times: Mapping[str, float]  # the factor from the part that is run to an epoch


def _runs(settings: Settings, folder: Path) -> Runs:
    from steppe.core.process_group import Workers
    from steppe.data.dataset import Splits
    from steppe.training import Config
    from steppe.training.loop import Training
    from steppe.training.stopping import StopRequest

    width, size, many = (2, 8, 24) if settings.quick else (WIDTH, BATCH, ROWS)
    data = cifar_like(many, settings.device)
    splits = Splits(data, data.rows(slice(size)))
    config = Config(
        model="gpu_networks:channels_last_resnet18", model_options={"width": width}, batch_size=size, precision="bf16",
        augment=["crop", "flip"], epochs=EPOCHS, evaluate_every=10_000, checkpoint_every=3600.0, device=settings.device,
        capture=True, out=str(folder),
    )  # fmt: skip
    training = Training(config, folder, splits, Workers(), torch.device(settings.device))
    training.capture()
    feed, step_seconds = training.batches.feed, StepSeconds()
    parts = {name: len(feed) // share for name, share in SHARES.items()}  # steps

    def ours(number: int) -> None:
        training.run(StopRequest(), step_seconds, until=training.position.epoch + 1)

    def loop(sam: bool) -> Callable[[int], None]:
        torch.manual_seed(0)
        model = channels_last_resnet18((3, 32, 32), 10, width).to(settings.device)
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        peer, count = Loop(model.parameters(), base), parts[LOOP if sam else SGD]

        def step(x, y) -> None:
            if sam:
                peer.step(lambda: loss_fn(model, x, y))
                return
            base.zero_grad()
            loss_fn(model, x, y).backward()
            base.step()

        def epoch(number: int) -> None:
            for x, y in islice(feed.epoch(number), count):
                step(x.contiguous(memory_format=torch.channels_last), y)

        for (x, y), _ in zip(feed.epoch(0), range(2 if settings.quick else 8), strict=False):
            step(x.contiguous(memory_format=torch.channels_last), y)
        return epoch

    def why() -> str | None:
        captured = getattr(training, "_captured", None)
        return "steps are captured on a GPU only" if captured is None else captured.why

    times = {name: len(feed) / part for name, part in parts.items()}
    return Runs({OURS: ours, LOOP: loop(True), SGD: loop(False)}, step_seconds, why, len(feed), times)
