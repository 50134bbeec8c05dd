"""The rows of each step: a batch and, for methods that use them, held-out rows and a mask of sharp rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .._util.digests import read_array
from ..core.draw import permutation, seed_of
from ..core.process_group import Workers
from ..data.augment import augmentation
from ..data.dataset import Dataset, Splits
from ..data.feed import BatchStream
from .config import HELD_OUT, SHARP, Config
from .problem import Task
from .schedule import Exchange

HALF = 0.5  # default fraction of sharp rows: the ratio of SharpBalance's released scripts

Rows = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Batch:
    """The rows of one step."""

    rows: Rows
    held_out: Rows | None  # for passes on held-out data
    sharp: Tensor | None  # mask of the rows that the method applies to, for SharpBalance


@dataclass(frozen=True)
class BatchSource:
    """Batches of one worker as a function of seed, epoch and step."""

    feed: BatchStream
    held_out: BatchStream | None = None
    sharp: Callable[[int], BatchStream | None] = lambda epoch: None  # masks of an epoch; None: no mask

    @classmethod
    def of(
        cls, config: Config, splits: Splits, task: Task, workers: Workers, folder: Path | None = None
    ) -> BatchSource:
        """Build the batches of the run in a folder, from rows that are on the device."""
        rank, world, train = workers.rank, workers.count, splits.train
        augment = augmentation(config.augment, len(train.classes) or None) if config.augment else None
        feed = BatchStream(train, config.batch_size, config.seed, augment, task.standard, rank, world)
        held_out = None
        if splits.held_out is not None:  # batches of the same size, if there are enough rows
            size = min(config.batch_size, len(splits.held_out) // world * world)
            held_out = BatchStream(
                splits.held_out, size, seed_of(config.seed, HELD_OUT), None, task.standard, rank, world
            )
        if config.method != "sharpbalance" and config.sharp_rows is None:
            return cls(feed, held_out)
        exchange, n = Exchange.of(config.sharp_rows), len(train)
        fixed: Tensor | None = None  # those listed in a file, or a random half
        if config.sharp_rows is None:
            fixed = _mask(permutation(n, config.seed, SHARP)[: round(HALF * n)], n)
        elif exchange is None:
            fixed = _mask_in(Path(config.sharp_rows), n, others=True)

        def masks(epoch: int) -> BatchStream | None:
            flags = fixed if exchange is None else _exchanged_rows(folder or Path(), exchange.last_before(epoch), n)
            if flags is None:
                return None
            # the same feed over one flag per row gives flags in the order of the rows; on the host, where the method
            # reads them
            return replace(feed, dataset=Dataset("sharp rows", flags, flags), augment=None, standard=None)

        return cls(feed, held_out, masks)

    def epoch(self, number: int, start: int) -> Iterator[Batch]:
        """Yield the batches of one epoch, from a step on."""
        held_out = _endless(self.held_out, number * len(self.feed) + start) if self.held_out is not None else None
        sharp = self.sharp(number)
        masks = sharp.epoch(number, start) if sharp is not None else None
        for rows in self.feed.epoch(number, start):
            yield Batch(rows, next(held_out) if held_out else None, next(masks)[0] if masks else None)


def _endless(feed: BatchStream, step: int) -> Iterator[Rows]:
    """Yield batches epoch after epoch, from a step on."""
    epoch, start = divmod(step, len(feed))
    while True:
        yield from feed.epoch(epoch, start)
        epoch, start = epoch + 1, 0


def rows_file(folder: Path, epoch: int) -> Path:
    """Return the file with the numbers of a member's sharp rows from an epoch on."""
    return folder / f"sharp-{epoch}.npy"


def _exchanged_rows(folder: Path, epoch: int | None, rows: int) -> Tensor | None:
    """Return the mask of an ensemble's member since its last exchange; None before the first."""
    if epoch is None:
        return None
    file = rows_file(folder, epoch)
    if not file.exists():
        raise FileNotFoundError(
            f"{file} does not exist: from epoch {epoch + 1} on, this run needs the rows that its ensemble exchanges. "
            "Train it by `steppe ensemble`, or give a single run other sharp_rows."
        )
    return _mask_in(file, rows)


def _mask_in(file: Path, rows: int, others: bool = False) -> Tensor:
    """Return the mask of the rows whose numbers are in a file."""
    listed = torch.from_numpy(read_array(file, others))
    is_list = listed.dtype == torch.int64 and listed.ndim == 1 and len(listed)
    if not is_list or not 0 <= int(listed.min()) <= int(listed.max()) < rows:
        raise ValueError(
            f"{file} holds {listed.dtype} of shape {tuple(listed.shape)}: a list of int64 numbers from 0 "
            f"to {rows - 1} is wanted, the sharp ones of {rows} training rows"
        )
    return _mask(listed, rows)


def _mask(listed: Tensor, rows: int) -> Tensor:
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[listed] = True
    return mask
