"""Data sets that come with steppe: the 8 x 8 digits, and synthetic problems with known solutions."""

from __future__ import annotations

from importlib.resources import as_file, files
from math import pi

import numpy as np
import torch
from torch import Generator, nn

from ..core.draw import seed_of
from .dataset import Dataset, Splits

TRAINING_ROWS = 1200  # two thirds; the study that comes with steppe uses the first half of them


def digits(training_rows: int = TRAINING_ROWS) -> Splits:
    """Load the 8 x 8 digits in a fixed shuffled order: the first rows are for training, the others for testing.

    They are the test part of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak 1998, CC BY 4.0), as
    scikit-learn has them.

    The grey levels 0 .. 16 are scaled to bytes 0 .. 255 (level * 255 / 16, rounded: levels stay distinct), so that
    inputs are images (rows, 1, 8, 8).

    Parameters
    ----------
    training_rows
        The number of training rows, of 1797.

    """
    with as_file(files(__package__) / "digits.npz") as file, np.load(file) as data:
        levels, targets = torch.tensor(data["levels"], dtype=torch.float64), torch.tensor(data["targets"]).long()
    if not 0 < training_rows < len(levels):
        raise ValueError(f"digits: train on between 1 and {len(levels) - 1} rows, not {training_rows}")
    images = (levels * 255 / 16).round().to(torch.uint8)
    dataset = Dataset("digits", images, targets, tuple("0123456789"))
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    return Splits(train=dataset.rows(order[:training_rows]), test=dataset.rows(order[training_rows:]))


TRUTH, TRAIN, TEST = range(3)  # uses of a seed: independent streams


def spirals(rows: int = 1000, test_rows: int = 1000, turns: float = 1.5, noise: float = 0.0, seed: int = 0) -> Splits:
    """Return two interleaved spirals in the unit disc (after Lang & Witbrock 1988): not linearly separable.

    Class 0 lies on radius = angle / (2 pi turns), class 1 on the same curve turned by half a circle, evenly along the
    curve. Arms are 1 / (2 turns) apart, so without noise the classes do not touch and a perfect classifier exists.

    Parameters
    ----------
    rows, test_rows
        Numbers of rows.
    turns
        Turns of each spiral.
    noise
        Standard deviation of Gaussian noise on the points.
    seed
        Seed of the points.

    """

    def part(name: str, n: int, use: int) -> Dataset:
        draws = stream(seed, use)
        targets = torch.arange(n) % 2
        radius = torch.rand(n, generator=draws, dtype=torch.float64).sqrt()  # arc length grows as the radius squared
        angle = 2 * pi * turns * radius + pi * targets
        points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
        points = points + noise * torch.randn(n, 2, generator=draws, dtype=torch.float64)
        return Dataset(name, points.float(), targets, ("inner first", "turned"))

    return Splits(part("spirals", rows, TRAIN), part("spirals", test_rows, TEST))


def teacher(inputs: int = 20, hidden: int = 10, seed: int = 0) -> nn.Module:
    """Return the network behind the targets of `teacher_student`: one hidden layer of ReLUs, Gaussian weights.

    Parameters
    ----------
    inputs, hidden
        Widths of the input and of the hidden layer.
    seed
        Seed of the weights.

    """
    draws = stream(seed, TRUTH)
    with torch.random.fork_rng(devices=[]):  # torch's initial weights, overwritten below, advance its generator
        net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    with torch.no_grad():
        for weights in net.parameters():
            weights.copy_(torch.randn(weights.shape, generator=draws) / weights[0].numel() ** 0.5)
    return net.requires_grad_(False)


def teacher_student(
    rows: int = 1000, test_rows: int = 1000, inputs: int = 20, hidden: int = 10, seed: int = 0
) -> Splits:
    """Return a regression on a teacher's outputs for Gaussian inputs: networks that contain it reach loss 0.

    Parameters
    ----------
    rows, test_rows
        Numbers of rows.
    inputs, hidden, seed
        As in `teacher`.

    """
    net = teacher(inputs, hidden, seed)

    def part(n: int, use: int) -> Dataset:
        x = torch.randn(n, inputs, generator=stream(seed, use))
        return Dataset("teacher-student", x, net(x))

    return Splits(part(rows, TRAIN), part(test_rows, TEST))


def stream(seed: int, use: int) -> Generator:
    """Return the random numbers of a seed for one of its uses.

    Parameters
    ----------
    seed
        The seed of the data set.
    use
        `TRUTH`, `TRAIN` or `TEST`.

    """
    return Generator().manual_seed(seed_of(seed, use))
