"""Two hundred epochs of ResNet-18 with SAM on CIFAR-10: how long they take, from measured epochs."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from feeding import cifar_like
from gpu_networks import channels_last_resnet18, loss_fn, stand_in_for_missing
from gpu_peers import Loop
from gpu_timing import Asked, Page, ratios, spread

ABOUT = """
The SAM recipe on rows like CIFAR-10's (50 000 random images): ResNet-18 of width 64, batch 128, crop and flip, bf16,
channels last, SGD with momentum. Epochs are whole: rows are shuffled, augmented and made standard on the device, by the
same feed for everybody. steppe's are those of its training loop, with captured steps, a record and a checkpoint at the
end; evaluation is left out everywhere. The others are bare loops that write nothing. One epoch of each in turns; of
SGD a third of one, whose time counts three times.
"""
EPOCHS, WIDTH, BATCH, ROWS = 200, 64, 128, 50_000
END = 56.0  # seconds
OURS, COPIED, SGD = "steppe sam, training loop, captured", "SAM, the copied loop (reimplemented)", "SGD, eager loop"
SHARES = {OURS: 1, COPIED: 1, SGD: 3}  # of an epoch, one in so many


def report(asked: Asked) -> Page:
    torch.backends.cudnn.benchmark = not asked.quick
    page = Page("epochs", ABOUT, asked)
    note = stand_in_for_missing()
    if note:
        page.say(note, "")
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs(asked, Path(folder))
        works = runs.epochs
        found: dict[str, list[float]] = {name: [] for name in works}
        works[OURS](0)  # records its steps and chooses algorithms
        for i in asked.within(4, 35.0, page.left(END)):
            for name in random.sample(sorted(works), len(works)):
                asked.wait()
                start = time.perf_counter()
                works[name](i + 1)
                asked.wait()
                found[name].append(runs.times[name] * (time.perf_counter() - start))
    why = runs.why()
    rows = [
        (
            name + (f" (plain: {why})" if name == OURS and why else ""),
            spread(seconds),
            spread(runs.alone.seconds[1:]) if name == OURS else "",
            len(seconds),
            spread(ratios(found[COPIED], seconds)),
            f"{EPOCHS * statistics.median(seconds) / 60:.1f} "
            f"({EPOCHS * min(seconds) / 60:.1f} - {EPOCHS * max(seconds) / 60:.1f})",
        )
        for name, seconds in found.items()
    ]
    projected = f"minutes of {EPOCHS} epochs, projected (of the fastest, of the slowest)"
    heads = ("training", "s an epoch", "of it its steps", "n", "copied loop / this", projected)
    page.table(f"Epochs of {runs.steps} steps", heads, rows)
    ours, copied = (EPOCHS * statistics.median(found[name]) / 60 for name in (OURS, COPIED))
    page.say(f"Projected from measured epochs: {ours:.1f} minutes with steppe, {copied:.1f} with the copied loop.", "")
    return page


@dataclass
class Alone:
    """Watches a run, and notes what its record says that the steps of each epoch took."""

    seconds: list[float] = field(default_factory=list)

    def stepped(self, position: object, sums: object) -> None:
        pass

    def recorded(self, record: Mapping[str, Any]) -> None:
        self.seconds.append(record["seconds"])


@dataclass(frozen=True)
class Runs:
    """An epoch of everybody, what steppe's steps took without the end of the epoch, and why they were not captured."""

    epochs: Mapping[str, Callable[[int], object]]
    alone: Alone
    why: Callable[[], str | None]
    steps: int  # an epoch
    times: Mapping[str, float]  # that what is run makes an epoch


def _runs(asked: Asked, folder: Path) -> Runs:
    from steppe.core.process_group import Workers
    from steppe.data.dataset import Splits
    from steppe.training import Config
    from steppe.training.loop import Training
    from steppe.training.problem import task_of
    from steppe.training.stopping import Wish

    width, size, many = (2, 8, 24) if asked.quick else (WIDTH, BATCH, ROWS)
    data = cifar_like(many, asked.device)
    splits = Splits(data, data.rows(slice(size)))
    config = Config(
        model="gpu_networks:channels_last_resnet18", model_options={"width": width}, batch_size=size, precision="bf16",
        augment=["crop", "flip"], epochs=EPOCHS, evaluate_every=10_000, checkpoint_every=3600.0, device=asked.device,
        capture=True, out=str(folder),
    )  # fmt: skip
    training = Training(config, folder, splits, task_of(splits), Workers(), torch.device(asked.device))
    training.capture()
    feed, alone = training.batches.feed, Alone()
    parts = {name: len(feed) // share for name, share in SHARES.items()}  # steps

    def ours(number: int) -> None:
        training.run(Wish(), alone, until=training.position.epoch + 1)

    def loop(sam: bool) -> Callable[[int], None]:
        torch.manual_seed(0)
        model = channels_last_resnet18((3, 32, 32), 10, width).to(asked.device)
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        copied, some = Loop(model.parameters(), base), parts[COPIED if sam else SGD]

        def step(x, y) -> None:
            if sam:
                copied.step(lambda: loss_fn(model, x, y))
                return
            base.zero_grad()
            loss_fn(model, x, y).backward()
            base.step()

        def epoch(number: int) -> None:
            for x, y in islice(feed.epoch(number), some):
                step(x.contiguous(memory_format=torch.channels_last), y)

        for (x, y), _ in zip(feed.epoch(0), range(2 if asked.quick else 8), strict=False):
            step(x.contiguous(memory_format=torch.channels_last), y)
        return epoch

    def why() -> str | None:
        captured = getattr(training, "_captured", None)
        return "steps are recorded on a GPU only" if captured is None else captured.why

    times = {name: len(feed) / part for name, part in parts.items()}
    return Runs({OURS: ours, COPIED: loop(True), SGD: loop(False)}, alone, why, len(feed), times)
