"""The protocol of SharpBalance's appendix C.3, all matrices and members at once, because everything diagonalises.

Data matrices are drawn and diagonalised once; then any step size, radius and number of steps costs a few array
operations in the eigenbasis of each matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .quadratic import ascent, summit
from .sharpbalance import Training
from .wishart import Wishart, contraction

Array = NDArray[np.float64]
Tick = Callable[[int, int], object]


@dataclass(frozen=True)
class Protocol:
    """How much is drawn; the numbers are those of appendix C.3, as far as it tells them."""

    matrices: int = 50
    starts: int = 50
    rows: int = 3000
    columns: int = 150
    test_rows: int = 1000
    parts: int = 10  # of SharpBalance
    ascent_step: float = 0.01
    ascent_steps: int = 50
    # The paper does not tell these. Weights start as large as the teacher's, and the radius of sharpness is small, so
    # that the gradient's part of the sharpness, in which the bounds differ, is larger than the curvature's
    radius: float = 0.1
    sigma: float = 1.0  # standard deviation of each initial weight
    teacher: float = 1.0  # root mean square of the teacher's weights: ||w*|| = teacher sqrt(columns)

    def __post_init__(self) -> None:
        if min(self.matrices, self.starts) < 2:
            raise ValueError(
                f"a variance is over 2 matrices and 2 starts at least, not {self.matrices} and {self.starts}"
            )
        if self.parts < 1 or self.rows % self.parts:
            raise ValueError(f"{self.rows} rows cannot be split into {self.parts} equal parts")

    def training(self, eta: float, rho: float, steps: int) -> Training:
        law = Wishart(self.rows, self.columns)
        return Training(law, eta, rho, steps, self.radius, self.sigma, self.teacher * self.columns**0.5)


@dataclass(frozen=True)
class Measured:
    """One value a matrix: what a simulated ensemble has."""

    diversity: Array  # sample variance of the members' predictions, averaged over test rows
    sharpness: Array  # of the expected member, at the summit
    climbed: Array  # the same as projected ascent finds it
    sampled: Array  # of the mean of the drawn members instead of the expected member
    alone: Array  # of the member expected on each part by itself, averaged over parts


@dataclass(frozen=True)
class Draws:
    """Data matrices, starts and test rows, each in the eigenbasis of its matrix."""

    protocol: Protocol
    curvature: Array  # (matrices, columns): eigenvalues of A^T A
    teacher: Array  # (matrices, columns)
    starts: Array  # (matrices, starts, columns)
    test: Array  # (matrices, columns, columns): T^T T / test rows
    part_curvature: Array | None  # (matrices, parts, columns)
    part_basis: Array | None  # (matrices, parts, columns, columns): eigenvectors of the parts in the basis of the whole
    part_of: NDArray[np.int64]  # (matrices, starts): the part that each member of SharpBalance is trained on

    def sam(self, eta: float, rho: float, steps: int) -> Measured:
        """Members trained on all rows."""
        power = contraction(self.curvature, eta, rho) ** steps
        errors = power[:, None] * (self.starts - self.teacher[:, None])
        return self._measured(errors, -power * self.teacher, -(power * self.teacher)[:, None])

    def sharpbalance(self, eta: float, rho: float, steps: int) -> Measured:
        """Members trained on one part of the rows each, drawn uniformly; the mean is over starts and parts."""
        if self.part_curvature is None or self.part_basis is None:
            raise ValueError("these draws have no parts: draw(..., parts=True) makes them")
        power = contraction(self.part_curvature, eta, rho) ** steps
        teacher = np.einsum("mpij,mi->mpj", self.part_basis, self.teacher)
        expected = -np.einsum("mpij,mpj->mpi", self.part_basis, power * teacher)
        apart = self.starts - self.teacher[:, None]
        errors = np.empty_like(apart)
        for m, part in np.ndindex(power.shape[:2]):
            chosen, basis = self.part_of[m] == part, self.part_basis[m, part]
            errors[m, chosen] = (apart[m, chosen] @ basis * power[m, part]) @ basis.T
        return self._measured(errors, expected.mean(1), expected)

    def _measured(self, errors: Array, expected: Array, by_part: Array) -> Measured:
        p, centred = self.protocol, errors - errors.mean(1, keepdims=True)
        diversity = (centred @ self.test * centred).sum((1, 2)) / (p.starts - 1)
        gradient = self.curvature * expected
        climbed = ascent(self.curvature, gradient, p.radius, p.ascent_step, p.ascent_steps)[-1]
        sampled = summit(self.curvature, self.curvature * errors.mean(1), p.radius).height
        each = self.curvature[:, None]
        alone = summit(each, each * by_part, p.radius).height.mean(1)
        return Measured(diversity, summit(self.curvature, gradient, p.radius).height, climbed, sampled, alone)


def draw(protocol: Protocol, seed: int = 0, parts: bool = False, tick: Tick = lambda done, total: None) -> Draws:
    """Draws the protocol's matrices, each from a generator of its own number, and diagonalises them."""
    whole = [_one(protocol, seed, number, parts, tick) for number in range(protocol.matrices)]
    curvature, teacher, starts, test, part_curvature, part_basis, part_of = zip(*whole, strict=True)
    return Draws(
        protocol,
        np.stack(curvature),
        np.stack(teacher),
        np.stack(starts),
        np.stack(test),
        np.stack(part_curvature) if parts else None,
        np.stack(part_basis) if parts else None,
        np.stack(part_of),
    )


def _one(p: Protocol, seed: int, number: int, parts: bool, tick: Tick) -> tuple[Any, ...]:
    rng = np.random.default_rng([seed, number])
    teacher = np.random.default_rng(seed).standard_normal(p.columns)  # one for all matrices
    teacher *= p.teacher * p.columns**0.5 / np.linalg.norm(teacher)
    data = rng.standard_normal((p.parts, p.rows // p.parts, p.columns)) / p.columns**0.5
    starts = p.sigma * rng.standard_normal((p.starts, p.columns))
    test = rng.standard_normal((p.test_rows, p.columns)) / p.columns**0.5
    part_of = rng.integers(p.parts, size=p.starts)
    grams = np.swapaxes(data, 1, 2) @ data
    curvature, basis = np.linalg.eigh(grams.sum(0))
    curvature = np.maximum(curvature, 0)
    seen = test @ basis
    part_curvature, part_basis = np.linalg.eigh(grams) if parts else (None, None)
    tick(number + 1, p.matrices)
    return (
        curvature,
        teacher @ basis,
        starts @ basis,
        seen.T @ seen / p.test_rows,
        part_curvature,
        basis.T @ part_basis if part_basis is not None else None,
        part_of,
    )
