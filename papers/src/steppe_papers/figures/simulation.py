"""Simulation of SharpBalance's appendix C.3 in the eigenbases of the data matrices.

Data matrices are drawn and diagonalised once. After that, every step size, radius and number of steps takes a few array
operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .quadratic import ascent, ball_maximum
from .sharpbalance import Training
from .wishart import Wishart, contraction

Array = NDArray[np.float64]
Tick = Callable[[int, int], object]


@dataclass(frozen=True)
class Protocol:
    """The sizes of the simulation; defaults from appendix C.3 unless stated otherwise.

    The paper does not give `radius`, `sigma` and `teacher`. With these defaults the initial weights have the scale of
    the teacher, and the gradient contributes more to the sharpness than the curvature: the bounds differ in that part.

    Parameters
    ----------
    matrices, starts
        The number of data matrices, and of initial weights per matrix.
    rows, columns, test_rows
        The shape of a data matrix, and the number of test rows.
    parts
        The number of parts of the rows in SharpBalance.
    ascent_step, ascent_steps
        The step size and the number of steps of projected ascent.
    radius
        The radius in which sharpness is measured.
    sigma
        The standard deviation of each initial weight.
    teacher
        The root mean square of the teacher's weights: ||w*|| = teacher sqrt(columns).

    Examples
    --------
    >>> protocol = figures.Protocol(rows=600, columns=30, parts=3)
    >>> training = protocol.training(eta=0.01, rho=0.1, steps=10)
    >>> training.law.ratio, training.part(protocol.parts).law
    (20.0, Wishart(rows=200, columns=30))

    """

    matrices: int = 50
    starts: int = 50
    rows: int = 3000
    columns: int = 150
    test_rows: int = 1000
    parts: int = 10
    ascent_step: float = 0.01
    ascent_steps: int = 50
    radius: float = 0.1
    sigma: float = 1.0
    teacher: float = 1.0

    def __post_init__(self) -> None:
        if min(self.matrices, self.starts) < 2:
            raise ValueError(
                f"a variance needs at least 2 matrices and 2 starts, not {self.matrices} and {self.starts}"
            )
        if self.parts < 1 or self.rows % self.parts:
            raise ValueError(f"{self.rows} rows cannot be split into {self.parts} equal parts")

    def training(self, eta: float, rho: float, steps: int) -> Training:
        """The settings of the theorems for this protocol."""
        law = Wishart(self.rows, self.columns)
        return Training(law, eta, rho, steps, self.radius, self.sigma, self.teacher * self.columns**0.5)


@dataclass(frozen=True)
class Measured:
    """Diversity and sharpness of simulated ensembles, one value per matrix.

    Attributes
    ----------
    diversity
        The sample variance of the members' predictions, averaged over test rows.
    sharpness
        Of the expected member.
    climbed
        The same by projected ascent, a lower bound.
    sampled
        Of the mean of the drawn members instead of the expected member.
    alone
        Of the expected member of each part, averaged over parts.

    Examples
    --------
    The methods of `Draws` return one:

    >>> protocol = figures.Protocol(matrices=2, starts=3, rows=8, columns=2, test_rows=5, parts=2)
    >>> measured = figures.draw(protocol).sam(eta=0.05, rho=0.1, steps=5)
    >>> measured.diversity.shape, bool((measured.climbed <= measured.sharpness).all())
    ((2,), True)

    """

    diversity: Array
    sharpness: Array
    climbed: Array
    sampled: Array
    alone: Array


@dataclass(frozen=True)
class Draws:
    """Data matrices, starts and test rows, each in the eigenbasis of its matrix.

    Attributes
    ----------
    protocol
        The sizes.
    curvature
        The eigenvalues of A^T A, (matrices, columns).
    teacher
        The minimum w*, (matrices, columns).
    starts
        The initial weights, (matrices, starts, columns).
    test
        T^T T / test rows, (matrices, columns, columns).
    part_curvature
        The eigenvalues of the parts, (matrices, parts, columns).
    part_basis
        Their eigenvectors in the basis of the whole, (matrices, parts, columns, columns).
    part_of
        The part on which SharpBalance trains each member, (matrices, starts).

    Examples
    --------
    `draw` returns them:

    >>> protocol = figures.Protocol(matrices=2, starts=3, rows=8, columns=2, test_rows=5, parts=2)
    >>> draws = figures.draw(protocol, parts=True)
    >>> draws.curvature.shape, draws.starts.shape, draws.sharpbalance(eta=0.05, rho=0.1, steps=5).diversity.shape
    ((2, 2), (2, 3, 2), (2,))

    """

    protocol: Protocol
    curvature: Array
    teacher: Array
    starts: Array
    test: Array
    part_curvature: Array | None
    part_basis: Array | None
    part_of: NDArray[np.int64]

    def sam(self, eta: float, rho: float, steps: int) -> Measured:
        """Members trained on all rows."""
        power = contraction(self.curvature, eta, rho) ** steps
        errors = power[:, None] * (self.starts - self.teacher[:, None])
        return self._measured(errors, -power * self.teacher, -(power * self.teacher)[:, None])

    def sharpbalance(self, eta: float, rho: float, steps: int) -> Measured:
        """Members trained on one random part of the rows each; the expected member is the mean over all parts."""
        if self.part_curvature is None or self.part_basis is None:
            raise ValueError("these draws have no parts: call draw(..., parts=True)")
        power = contraction(self.part_curvature, eta, rho) ** steps
        teacher = np.einsum("mpij,mi->mpj", self.part_basis, self.teacher)
        expected = -np.einsum("mpij,mpj->mpi", self.part_basis, power * teacher)
        start_errors = self.starts - self.teacher[:, None]
        errors = np.empty_like(start_errors)
        for m, part in np.ndindex(power.shape[:2]):
            chosen, basis = self.part_of[m] == part, self.part_basis[m, part]
            errors[m, chosen] = (start_errors[m, chosen] @ basis * power[m, part]) @ basis.T
        return self._measured(errors, expected.mean(1), expected)

    def _measured(self, errors: Array, expected: Array, by_part: Array) -> Measured:
        p, centred = self.protocol, errors - errors.mean(1, keepdims=True)
        diversity = (centred @ self.test * centred).sum((1, 2)) / (p.starts - 1)
        gradient = self.curvature * expected
        climbed = ascent(self.curvature, gradient, p.radius, p.ascent_step, p.ascent_steps)[-1]
        sampled = ball_maximum(self.curvature, self.curvature * errors.mean(1), p.radius).value
        each = self.curvature[:, None]
        alone = ball_maximum(each, each * by_part, p.radius).value.mean(1)
        return Measured(diversity, ball_maximum(self.curvature, gradient, p.radius).value, climbed, sampled, alone)


def draw(protocol: Protocol, seed: int = 0, parts: bool = False, tick: Tick = lambda done, total: None) -> Draws:
    """Draws the data matrices and diagonalises them.

    Parameters
    ----------
    protocol
        The sizes.
    seed
        The seed; each matrix has a generator of its own, seeded by (seed, its number).
    parts
        Whether to diagonalise the parts too, as `Draws.sharpbalance` needs.
    tick
        Called with the number of matrices done and their total.

    Examples
    --------
    >>> protocol = figures.Protocol(matrices=2, starts=3, rows=8, columns=2, test_rows=5, parts=2)
    >>> draws = figures.draw(protocol, seed=1)
    >>> bool((draws.sam(eta=0.0, rho=0.1, steps=5).sharpness > 0).all())  # no step: the initial weights
    True

    """
    matrices = []
    for number in range(protocol.matrices):
        matrices.append(_draw_matrix(protocol, seed, number, parts))
        tick(number + 1, protocol.matrices)
    arrays: list[Any] = [None if x[0] is None else np.stack(x) for x in zip(*matrices, strict=True)]
    return Draws(protocol, *arrays)


def _draw_matrix(p: Protocol, seed: int, number: int, parts: bool) -> tuple[Any, ...]:
    """One matrix and its starts and test rows: the fields of `Draws` after the protocol, in their order."""
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
    test = test @ basis
    part_curvature, part_basis = np.linalg.eigh(grams) if parts else (None, None)
    part_basis = basis.T @ part_basis if part_basis is not None else None
    gram = test.T @ test / p.test_rows
    return curvature, teacher @ basis, starts @ basis, gram, part_curvature, part_basis, part_of
