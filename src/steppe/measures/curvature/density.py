"""Spectral densities by stochastic Lanczos quadrature (Ghorbani et al. 2019), and log-determinants from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10, sqrt

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ...core.draw import Draw
from ...core.vector import Vector
from ..estimate import Estimate, summarise
from .lanczos import Lanczos, Operator, Ritz

Floats = NDArray[np.float64]
RESOLVED = 0.25  # a node counts as an eigenvalue if its residual is below this fraction of it


@dataclass(frozen=True)
class Density:
    """The spectrum of an operator as a distribution; the draws are quadrature rules of random starts.

    Parameters
    ----------
    runs
        One quadrature rule per random start.
    dimension
        Of the operator.

    """

    runs: Sequence[Ritz]
    dimension: int

    @property
    def largest(self) -> float:
        return max(float(run.values[-1]) for run in self.runs)

    @property
    def smallest(self) -> float:
        return min(float(run.values[0]) for run in self.runs)

    def integral(self, f: Callable[[Floats], ArrayLike], note: str = "") -> Estimate:
        """The sum of f over all eigenvalues."""
        sums = [self.dimension * float(np.dot(run.weights, f(run.values))) for run in self.runs]
        return summarise(torch.tensor(sums, dtype=torch.float64), "plug-in", note=note)

    def moment(self, k: int) -> Estimate:
        """The sum of the k-th powers of the eigenvalues: 1 is the trace, 2 the squared Frobenius norm."""
        return self.integral(lambda x: x**k)

    def count(self, low: float = -np.inf, high: float = np.inf) -> Estimate:
        """How many eigenvalues lie above `low` and not above `high`."""
        return self.integral(lambda x: (x > low) & (x <= high))

    def curve(self, grid: ArrayLike, width: float | None = None) -> tuple[Floats, Floats]:
        """The density on a grid, smoothed by Gaussians of a width, and its standard error; it integrates to 1."""
        x = np.asarray(grid, dtype=np.float64)
        if width is None:
            width = 0.01 * ((self.largest - self.smallest) or abs(self.largest) or 1.0)
        peaks = [np.exp(-0.5 * ((x[:, None] - run.values) / width) ** 2) @ run.weights for run in self.runs]
        each = np.stack(peaks) / (width * sqrt(2 * np.pi))
        error = each.std(0, ddof=1) / sqrt(len(each)) if len(each) > 1 else np.full_like(x, np.nan)
        return each.mean(0), error

    @property
    def resolution(self) -> float:
        """Above this, every node is an eigenvalue; below, a node represents several eigenvalues."""
        unresolved = [np.abs(run.values[run.residuals > RESOLVED * np.abs(run.values)]) for run in self.runs]
        return max((float(values.max()) for values in unresolved if len(values)), default=0.0)

    def log_determinant(self, cut: float = 1e-2) -> Estimate:
        """The sum of log(eigenvalue) over those above `cut` times the largest."""
        threshold = cut * self.largest
        if threshold <= 0:
            raise ValueError(
                f"no eigenvalue is positive (the largest is {self.largest:.3g}): there is no log-determinant"
            )
        if threshold < self.resolution:
            raise ValueError(
                f"a cut at {cut:g} of the largest eigenvalue is finer than {len(self.runs)} runs of "
                f"{len(self.runs[0].values)} steps resolve: take cut >= "
                f"{_rounded_up(self.resolution / self.largest):.2g}, or more steps"
            )
        above = self.count(threshold).value
        return self.integral(
            lambda x: np.log(np.where(x > threshold, x, 1.0)), f"about {above:.0f} eigenvalues above {threshold:.3g}"
        )

    def log_determinant_shifted(self, mu: float) -> Estimate:
        """The log-determinant of the operator plus mu times the identity."""
        if self.smallest + mu <= 0:
            raise ValueError(
                f"with mu = {mu:g} the operator is not positive definite: its smallest eigenvalue is at most "
                f"{self.smallest:.4g}, so take a mu above {-self.smallest:.4g}"
            )
        return self.integral(lambda x: np.log(x + mu))


def _rounded_up(x: float) -> float:
    """Round up to two digits."""
    unit = 10.0 ** (floor(log10(x)) - 1)
    return ceil(x / unit) * unit


def quadrature_rule(operator: Operator, steps: int, start: Vector) -> Ritz:
    """The quadrature rule of one start vector."""
    lanczos = Lanczos(operator, lambda _: start)
    while lanczos.steps < min(steps, operator.dimension) and not lanczos.invariant:
        lanczos.step()
    return lanczos.ritz()


def spectral_density(operator: Operator, runs: int = 10, steps: int = 100, seed: int = 0) -> Density:
    """The spectral density by stochastic Lanczos quadrature with `runs` random starts of `steps` steps each."""
    space = operator.space
    starts = (Draw(space, (seed, 2, i), space.weights(), space.zeros()).normal() for i in range(runs))
    return Density([quadrature_rule(operator, steps, start) for start in starts], operator.dimension)
