"""Data sets that come with steppe: the 8 x 8 digits, and synthetic problems with known solutions."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import as_file, files
from math import pi, sqrt

import numpy as np
import torch
from torch import Generator, Tensor, nn

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

    def part(name: str, n: int, stream: int) -> Dataset:
        draws = _stream(seed, stream)
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
    draws = _stream(seed, TRUTH)
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

    def part(n: int, stream: int) -> Dataset:
        x = torch.randn(n, inputs, generator=_stream(seed, stream))
        return Dataset("teacher-student", x, net(x))

    return Splits(part(rows, TRAIN), part(test_rows, TEST))


Law = Callable[[int, int, Generator], Tensor]


def gaussian_rows(rows: int, dimensions: int, draws: Generator) -> Tensor:
    """Draw independent standard Gaussian entries: in expectation the loss is the squared distance from the truth."""
    return torch.randn(rows, dimensions, generator=draws)


def whitened_rows(rows: int, dimensions: int, draws: Generator) -> Tensor:
    """Draw rows with X'X = rows * I, so that the mean loss *is* the squared distance from the truth."""
    if rows < dimensions:
        raise ValueError(f"{rows} rows cannot be white in {dimensions} dimensions: use at least {dimensions} rows")
    x = torch.randn(rows, dimensions, generator=draws, dtype=torch.float64)
    orthonormal: Tensor = torch.linalg.qr(x).Q
    return (orthonormal * sqrt(rows)).float()


def sparse_truth(dimensions: int = 200, nonzero: int = 20, seed: int = 0) -> Tensor:
    """Return the vector behind `sparse_regression`: 1 or -1 at random places, 0 elsewhere.

    Parameters
    ----------
    dimensions, nonzero
        Length of the vector, and number of nonzero entries.
    seed
        Seed of places and signs.

    """
    draws = _stream(seed, TRUTH)
    truth = torch.zeros(dimensions)
    places = torch.randperm(dimensions, generator=draws)[:nonzero]
    truth[places] = torch.randint(0, 2, (nonzero,), generator=draws).float() * 2 - 1
    return truth


def sparse_regression(
    rows: int = 128,  # fewer than dimensions, so many vectors fit; enough that the one of least l1 norm is the truth
    test_rows: int = 1000,
    dimensions: int = 200,  # with 90 % zeros: Andriushchenko et al. 2023, Section 5.2
    nonzero: int = 20,
    law: Law = gaussian_rows,
    seed: int = 0,
) -> Splits:
    """Return the regression of the papers on diagonal linear networks: y = <x, truth> for a sparse truth, no noise.

    Where rows < dimensions many vectors fit, and their l1 norm relates to how well they predict. The paper's closed
    forms assume white inputs (`whitened_rows`, at least as many rows as dimensions): at a minimum of the mean squared
    error the Hessian of u * v is then 2 [[v v, u v], [u v, u u]], diagonal in each block. (The paper prints it without
    the 2, though its loss has no 1/2.)

    Parameters
    ----------
    rows, test_rows
        Numbers of rows.
    dimensions, nonzero
        As in `sparse_truth`.
    law
        Draws the training inputs: `gaussian_rows` or `whitened_rows`.
    seed
        Seed of the truth and of the inputs.

    """
    if not 0 < nonzero <= dimensions:
        raise ValueError(f"{nonzero} of {dimensions} coefficients cannot be nonzero: use 1 to {dimensions}")
    truth = sparse_truth(dimensions, nonzero, seed)

    def part(n: int, stream: int, rows_of: Law) -> Dataset:
        x = rows_of(n, dimensions, _stream(seed, stream))
        return Dataset("sparse-regression", x, (x @ truth).unsqueeze(1))

    return Splits(part(rows, TRAIN, law), part(test_rows, TEST, gaussian_rows))


def _stream(seed: int, use: int) -> Generator:
    return Generator().manual_seed(seed_of(seed, use))
