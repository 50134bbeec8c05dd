"""Sparse regression, the problem of the papers on diagonal linear networks."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Generator, Tensor

from steppe.data import Dataset, Splits
from steppe.data.built_in import TEST, TRAIN, TRUTH, stream

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
    draws = stream(seed, TRUTH)
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

    def part(n: int, use: int, rows_of: Law) -> Dataset:
        x = rows_of(n, dimensions, stream(seed, use))
        return Dataset("sparse-regression", x, (x @ truth).unsqueeze(1))

    return Splits(part(rows, TRAIN, law), part(test_rows, TEST, gaussian_rows))
