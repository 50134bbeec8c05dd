"""Batches for training and for evaluation, from rows that are on the model's device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Generator, Tensor

from ..core.draw import permutation, seed_of
from .augment import Augmentations
from .dataset import Dataset
from .pixels import Standard

ORDER, IMAGES, BATCH = range(3)  # uses of a seed: independent streams
# Rows prepared together, in whole batches: small kernels cost the host as much time as large ones, and with batches
# prepared one by one an eager ResNet-18 step on an H200 took 5 % longer. 25 MB on CIFAR.
AHEAD = 2048
MOST_AHEAD = 1 << 25  # numbers prepared together, so that large images do not fill the memory: 134 MB in float32


@dataclass(frozen=True)
class BatchStream:
    """Shuffled, augmented, standardised batches as a function of (seed, epoch, step).

    The order of the rows is the same on every device. Each process computes the whole batch and keeps its share, so
    that rows, crops and mixup's partners do not depend on the number of processes; batches are cheap next to a model.
    An epoch drops an incomplete last batch, other rows every epoch: a smaller batch would be a noisier step and,
    captured or compiled, another program.

    Parameters
    ----------
    dataset
        Rows on the device.
    batch_size
        Rows per step, over all processes together.
    seed
        Seed of the order and of augmentation.
    augment
        Augmentations of each batch.
    standard
        Standardisation of the inputs; None leaves them.
    rank, world
        The number of this process, and of all processes.

    """

    dataset: Dataset
    batch_size: int
    seed: int = 0
    augment: Augmentations | None = None
    standard: Standard | None = None
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        name, rows = self.dataset.name, len(self.dataset)
        if not 1 <= self.batch_size <= rows:
            raise ValueError(f"{name} has no batch of {self.batch_size} rows: give a batch size from 1 to {rows}")
        if self.batch_size % self.world or not 0 <= self.rank < self.world:
            process = f"process {self.rank} of {self.world} cannot have an equal share of {self.batch_size} rows"
            raise ValueError(f"{process}: give a batch size that is a multiple of the number of processes")

    def __len__(self) -> int:
        """Return the number of steps per epoch."""
        return len(self.dataset) // self.batch_size

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch, from a step on."""
        data, size, draws = self.dataset, self.batch_size, Generator(self.dataset.inputs.device)
        order = permutation(len(data), self.seed, ORDER, number).to(data.inputs.device)
        targets = data.targets.index_select(0, order)
        mine = slice(self.rank * size // self.world, (self.rank + 1) * size // self.world)
        ahead = min(AHEAD, MOST_AHEAD // data.inputs[0].numel())
        together = max(1, ahead // size)
        augment, standard = self.augment or Augmentations(), self.standard or _unchanged
        for first in range(start - start % together, len(self), together):
            last = min(first + together, len(self))
            rows = slice(first * size, last * size)
            images, labels = data.inputs.index_select(0, order[rows]), targets[rows]
            draws.manual_seed(seed_of(self.seed, IMAGES, number, first))
            for change in augment.by_image:
                images, labels = change(images, labels, draws)
            if not augment.by_batch:
                images = standard(images)
            for step in range(max(first, start), last):
                rows = slice((step - first) * size, (step - first + 1) * size)
                x, y = images[rows], labels[rows]
                if augment.by_batch:
                    draws.manual_seed(seed_of(self.seed, BATCH, number, step))
                    for change in augment.by_batch:
                        x, y = change(x, y, draws)
                    x = standard(x)
                yield x[mine], y[mine]


def batches(
    dataset: Dataset, batch_size: int, standard: Standard | None = None, rank: int = 0, world: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every row once, in order, without augmentation; the last batch may be small; processes alternate."""
    for start in range(rank * batch_size, len(dataset), world * batch_size):
        rows = slice(start, start + batch_size)
        yield (standard or _unchanged)(dataset.inputs[rows]), dataset.targets[rows]


def _unchanged(inputs: Tensor) -> Tensor:
    return inputs
