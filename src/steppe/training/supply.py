"""What every step is fed: a batch, and for methods that want them held-out rows and a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..core.draw import permutation, seed_of
from ..core.process_group import Workers
from ..data.augment import augmentation
from ..data.dataset import Dataset, Splits
from ..data.feed import Feed
from . import arrays
from .config import Config
from .exchange import Exchange, rows_file
from .problem import HELD_OUT, SHARP, Task

HALF = 0.5  # of the rows are sharp where nobody says which: the ratio of SharpBalance's released scripts

Rows = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Batch:
    """One step's rows."""

    rows: Rows
    held_out: Rows | None  # for passes on held-out data
    sharp: Tensor | None  # which rows are sharpness-aware, for sharpbalance


@dataclass(frozen=True)
class Supply:
    """Batches as a function of the seed, the epoch and the step; this worker's share of them."""

    feed: Feed
    held_out: Feed | None = None
    sharp: Callable[[int], Feed | None] = lambda epoch: None  # flags of the rows in an epoch; None: not told apart

    @classmethod
    def of(cls, config: Config, splits: Splits, task: Task, workers: Workers, path: Path | None = None) -> Supply:
        """The supply of a run in that folder, from rows that are on the device already."""
        rank, world, train = workers.rank, workers.count, splits.train
        augment = augmentation(config.augment, len(train.classes) or None) if config.augment else None
        feed = Feed(train, config.batch_size, config.seed, augment, task.standard, rank, world)
        held = None
        if splits.held_out is not None:  # batches as large as the others, if there are so many rows
            size = min(config.batch_size, len(splits.held_out) // world * world)
            held = Feed(splits.held_out, size, seed_of(config.seed, HELD_OUT), None, task.standard, rank, world)
        if config.method != "sharpbalance" and config.sharp_rows is None:
            return cls(feed, held)
        exchange, n = Exchange.of(config.sharp_rows), len(train)
        chosen = sharp_rows(config, n) if exchange is None else None

        def masks(epoch: int) -> Feed | None:
            # one flag a row, dealt out in the order in which the rows are; on the host: the method reads them there
            flags = exchanged_rows(path, exchange, epoch, n) if chosen is None else chosen
            if flags is None:
                return None
            return replace(feed, dataset=Dataset("sharp rows", flags, flags), augment=None, standard=None)

        return cls(feed, held, masks)

    def epoch(self, number: int, start: int) -> Iterator[Batch]:
        """The batches of one epoch, from a step on."""
        held = _endless(self.held_out, number * len(self.feed) + start) if self.held_out is not None else None
        sharp = self.sharp(number)
        masks = sharp.epoch(number, start) if sharp is not None else None
        for rows in self.feed.epoch(number, start):
            yield Batch(rows, next(held) if held is not None else None, next(masks)[0] if masks is not None else None)


def _endless(feed: Feed, step: int) -> Iterator[Rows]:
    """Batches epoch after epoch, from a step on."""
    epoch, start = divmod(step, len(feed))
    while True:
        yield from feed.epoch(epoch, start)
        epoch, start = epoch + 1, 0


def sharp_rows(config: Config, rows: int) -> Tensor:
    """Which training rows are sharpness-aware for sharpbalance: those of a file, or a random half."""
    if config.sharp_rows is None:
        sharp = torch.zeros(rows, dtype=torch.bool)
        sharp[permutation(rows, config.seed, SHARP)[: round(HALF * rows)]] = True
        return sharp
    return _listed(Path(config.sharp_rows), rows)


def exchanged_rows(path: Path | None, exchange: Exchange | None, epoch: int, rows: int) -> Tensor | None:
    """Which are so in an epoch of an ensemble's member: what came of the last exchange, None before the first."""
    last = exchange.holding(epoch) if exchange is not None else None
    if last is None:
        return None
    file = rows_file(path or Path(), last)
    if not file.exists():
        raise FileNotFoundError(
            f"{file} is not there: from epoch {last + 1} on this run follows what the members of its ensemble told one "
            "another after the epoch before. `steppe ensemble` trains them together; a run by itself takes other "
            "sharp_rows."
        )
    return _listed(file, rows)


def _listed(file: Path, rows: int) -> Tensor:
    """The rows that a file has the numbers of."""
    sharp = torch.zeros(rows, dtype=torch.bool)
    listed = torch.from_numpy(arrays.read(file))
    good = listed.dtype == torch.int64 and listed.ndim == 1 and len(listed)
    if not good or not 0 <= int(listed.min()) <= int(listed.max()) < rows:
        raise ValueError(
            f"{file} holds {listed.dtype} of shape {tuple(listed.shape)}: a list of int64 numbers from 0 "
            f"to {rows - 1} is wanted, the sharp ones of {rows} training rows"
        )
    sharp[listed] = True
    return sharp
