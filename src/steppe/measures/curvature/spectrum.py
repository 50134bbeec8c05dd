"""The spectrum of an operator: estimated from products that quantities share, or exact for small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from ...core.basis import flat, unflat
from ...core.vector import Vector, inverse
from ..estimate import Estimate, Kind, NotFinite, exact, summarise
from .lanczos import Density, Lanczos, Operator, Ritz, quadrature_rule, random_source

End = Literal["top", "bottom"]
RANDOM = 0.1  # length of the random part of the start vector, beside a gradient of length 1
BLOCK = 5  # probes between two estimates
DENSE_MOST = 20_000  # parameters: the matrix takes 3.2 GB then
COLUMNS = 32  # of a dense matrix per call for products


@dataclass(frozen=True)
class Pair:
    """An approximate eigenvalue and eigenvector; an eigenvalue lies within the residual."""

    value: float
    vector: Vector
    residual: float


class Sweep:
    """Spectral estimates of an operator that share their products; each one adds only the products that it needs.

    Eigenvalues come from a Lanczos process. Trace and Frobenius norm are exact on its Krylov space, at no extra cost,
    and estimated by random probes on the complement, where little variance is left. A multiple eigenvalue counts once
    unless the Krylov space becomes invariant, as in any Lanczos process.

    Parameters
    ----------
    operator
        A `Curvature`, or any symmetric operator.
    seed
        Of the start vector and the probes.
    deflate
        The least dimension of the Krylov space before the first probe; 0 is Hutchinson's estimator.

    """

    def __init__(self, operator: Operator, seed: int = 0, deflate: int = 15):
        self.operator, self.seed, self.deflate = operator, seed, deflate
        self.lanczos = Lanczos(operator, self._start)
        self._deflated: int | None = None  # basis vectors that the probes are orthogonal to, fixed by the first probe
        self._traces: list[float] = []
        self._squares: list[float] = []
        self._invariant_at: dict[tuple[int, End], float] = {}  # k-th eigenvalues of the last invariant space
        self._rules: dict[int, list[Ritz]] = {}  # quadrature rules by their number of steps

    @property
    def products(self) -> int:
        """The number of products so far."""
        rules = sum(len(rule.values) for same_length in self._rules.values() for rule in same_length)
        return self.lanczos.steps + len(self._traces) + rules

    def eigenvalues(self, k: int = 1, end: End = "top", rtol: float = 1e-3, most: int = 200) -> Iterator[Estimate]:
        """Yield estimates of the k-th eigenvalue from one end until its residual is below rtol times it."""
        _check_index(self.operator, k, end)
        enough = 1 if k == 1 else 2 * k + 10  # a low-dimensional invariant space shows by then
        for ritz in self._growing(k, most):
            i = _index(ritz, k, end)
            estimate = self._eigenvalue(ritz, i, end)
            yield estimate
            if self.lanczos.invariant:  # multiple eigenvalues show in the spaces of further starts
                if k == 1 or self._invariant_at.get((k, end)) == estimate.value:
                    return
                self._invariant_at[k, end] = estimate.value
            # not the squared residual over the gap: of two eigenvalues 1.5 % apart that chose the lower one
            elif self.lanczos.steps >= enough and np.all(
                ritz.residuals[_outermost(ritz, k, end)] <= rtol * abs(ritz.values[i])
            ):
                return

    def pairs(self, k: int, end: End = "top", rtol: float = 1e-3, most: int = 200) -> list[Pair]:
        """The k outermost eigenvalues from one end with their eigenvectors."""
        for _ in self.eigenvalues(k, end, rtol, most):
            pass
        ritz = self.lanczos.ritz()
        indices = [_index(ritz, j + 1, end) for j in range(k)]
        return [Pair(float(ritz.values[i]), self.lanczos.vector(ritz, i), float(ritz.residuals[i])) for i in indices]

    def trace(self, rtol: float = 0.02, most: int = 200) -> Iterator[Estimate]:
        """Yield estimates of the trace until the standard error is below rtol times it."""
        return self._deflated_estimates(self._traces, lambda k: sum(self.lanczos.diagonal[:k]), rtol, most)

    def frobenius_squared(self, rtol: float = 0.02, most: int = 200) -> Iterator[Estimate]:
        """Yield estimates of the sum of squared eigenvalues until the standard error is below rtol times it."""

        def krylov_part(k: int) -> float:
            return float(self.lanczos.matrix(k).square().sum()) + self.lanczos.off[k - 1] ** 2 if k else 0.0

        return self._deflated_estimates(self._squares, krylov_part, rtol, most)

    def log_determinant(self, cut: float = 1e-2, runs: int = 10, steps: int = 100) -> Iterator[Estimate]:
        """The sum of log(eigenvalue) over those above `cut` times the largest."""
        for density in self._densities(runs, steps):
            yield density.log_determinant(cut)

    def log_determinant_shifted(self, mu: float, runs: int = 10, steps: int = 100) -> Iterator[Estimate]:
        """The log-determinant of the operator plus mu times the identity."""
        for density in self._densities(runs, steps):
            yield density.log_determinant_shifted(mu)

    def _densities(self, runs: int, steps: int) -> Iterator[Density]:
        """Densities of more and more runs; runs of one length are kept for the next measure."""
        rules = self._rules.setdefault(steps, [])
        if len(rules) >= runs:
            yield Density(rules[:runs], self.operator.dimension)
        while len(rules) < runs:
            start = random_source(self.operator, self.seed, 2, len(rules)).normal()
            rules.append(quadrature_rule(self.operator, steps, start))
            if len(rules) >= min(2, runs):
                yield Density(rules, self.operator.dimension)

    def _growing(self, k: int, most: int) -> Iterator[Ritz]:
        """Yield the Ritz values now, and after every further step."""
        while self.lanczos.steps < k:
            self.lanczos.step()
        while True:
            yield self.lanczos.ritz()
            if self.lanczos.steps >= min(most, self.operator.dimension):
                return
            self.lanczos.step()

    def _deflated_estimates(
        self, draws: list[float], krylov_part: Callable[[int], float], rtol: float, most: int
    ) -> Iterator[Estimate]:
        """Yield the exact part on the Krylov space plus the mean of the probes' draws on its complement."""
        for probes in self._probing():
            part = krylov_part(self._deflated or 0)
            if not draws:  # the Krylov space is the whole space
                yield exact(part)
                return
            mean = summarise(torch.tensor(draws, dtype=torch.float64), "unbiased")
            estimate = replace(mean, value=part + mean.value)
            yield estimate
            if self.lanczos.steps + len(draws) + BLOCK > most:
                return
            if probes >= 2 * BLOCK and estimate.stderr <= rtol * abs(estimate.value):
                return

    def _probing(self) -> Iterator[int]:
        """Yield the number of probes now, and after every further block."""
        if self._deflated is None:
            while self.lanczos.steps < min(self.deflate, self.operator.dimension):
                self.lanczos.step()
            self._deflated = self.lanczos.steps if self.deflate else 0
        if self._traces or self._deflated == self.operator.dimension:
            yield len(self._traces)
        while self._deflated < self.operator.dimension:
            self._probe(BLOCK)
            yield len(self._traces)

    def _probe(self, n: int) -> None:
        first = len(self._traces)
        probes = [random_source(self.operator, self.seed, 1, i).signs() for i in range(first, first + n)]
        for z in probes:
            self.lanczos.basis.remove_(z, self._deflated)
        images = self.operator.products(probes)
        self._traces += [float(z.dot(image)) for z, image in zip(probes, images, strict=True)]
        self._squares += [float(image.norm()) ** 2 for image in images]

    def _eigenvalue(self, ritz: Ritz, i: int, end: End) -> Estimate:
        if self.lanczos.steps == self.operator.dimension:
            return exact(float(ritz.values[i]))
        kind: Kind = "lower bound" if end == "top" else "upper bound"
        return Estimate(float(ritz.values[i]), float(ritz.residuals[i]), 1, kind)

    def _start(self, i: int) -> Vector:
        """The gradient, which lies mostly along outermost eigenvectors, plus noise in case it is orthogonal to one."""
        start = random_source(self.operator, self.seed, 0, i).normal()
        start.mul_(inverse(start.norm()))
        if i == 0:
            slope = self.operator.gradient()
            start.mul_(RANDOM).add_(slope, inverse(slope.norm()))
        return start


def hutchinson(operator: Operator, seed: int = 0) -> Sweep:
    """A `Sweep` whose traces are means over random signs, without deflation (Hutchinson 1990); takes its arguments."""
    return Sweep(operator, seed, deflate=0)


def diagonal(operator: Operator, n: int = 100, seed: int = 0) -> tuple[Vector, Vector]:
    """An unbiased estimate of every diagonal entry and its standard error, from random signs (Bekas et al. 2007).

    Parameters
    ----------
    operator
        A `Curvature`, or any symmetric operator.
    n
        The number of products.
    seed
        Of the signs.

    """
    if n < 2:
        raise ValueError(f"a standard error needs at least two probes, not n = {n}")
    space = operator.space
    total, squares = space.zeros(), space.zeros()
    for i in range(n):
        z = random_source(operator, seed, 3, i).signs()
        entries = operator.product(z).mul_(z)
        total.add_(entries)
        squares.add_(entries * entries)
    if not isfinite(float(squares.norm())):
        raise NotFinite("a product with the operator is infinite or not a number: it has no diagonal")
    mean = total * (1 / n)
    variance = (squares * (1 / n)).add_(mean * mean, -1.0)
    return mean, variance.map(lambda x: torch.sqrt(x.clamp(min=0)) / sqrt(n - 1))


def _check_index(operator: Operator, k: int, end: End) -> None:
    if not 1 <= k <= operator.dimension:
        raise ValueError(f"there are {operator.dimension} eigenvalues, and no {k}-th one from the {end}")


def _index(ritz: Ritz, k: int, end: End) -> int:
    """The index of the k-th value from one end, or of the last one."""
    n = len(ritz.values)
    return max(n - k, 0) if end == "top" else min(k - 1, n - 1)


def _outermost(ritz: Ritz, k: int, end: End) -> slice:
    return slice(max(len(ritz.values) - k, 0), None) if end == "top" else slice(0, k)


class Dense:
    """The same quantities as `Sweep`, exactly, for one product per parameter.

    Parameters
    ----------
    operator
        A `Curvature`, or any symmetric operator, of at most 20 000 parameters.
    seed
        Unused: nothing is random.

    """

    def __init__(self, operator: Operator, seed: int = 0):
        if operator.dimension > DENSE_MOST:
            raise ValueError(
                f"a dense matrix for {operator.dimension} parameters is too large (at most {DENSE_MOST}): use "
                "Sweep, or choose fewer parameters by only="
            )
        self.operator = operator

    @cached_property
    def matrix(self) -> Tensor:
        """The operator as a matrix in the order of the parameters, on the CPU."""
        d, space = self.operator.dimension, self.operator.space
        rows = []
        for start in range(0, d, COLUMNS):
            units = torch.zeros(min(COLUMNS, d - start), d, dtype=space.precision, device=space.device)
            units[range(len(units)), range(start, start + len(units))] = 1.0
            images = self.operator.products([unflat(space, unit) for unit in units])
            rows += [flat(image).double().cpu() for image in images]
        matrix: Tensor = torch.stack(rows)
        if not bool(torch.isfinite(matrix).all()):
            raise NotFinite("the Hessian has entries that are infinite or not a number")
        return (matrix + matrix.mT) / 2

    @cached_property
    def spectrum(self) -> Tensor:
        """All eigenvalues in ascending order."""
        return cast(Tensor, torch.linalg.eigvalsh(self.matrix))

    def eigenvalues(self, k: int = 1, end: End = "top", rtol: float = 0.0, most: int = 0) -> Iterator[Estimate]:
        _check_index(self.operator, k, end)
        yield exact(float(self.spectrum[-k if end == "top" else k - 1]))

    def trace(self, rtol: float = 0.0, most: int = 0) -> Iterator[Estimate]:
        yield exact(float(self.matrix.trace()))

    def frobenius_squared(self, rtol: float = 0.0, most: int = 0) -> Iterator[Estimate]:
        yield exact(float(self.matrix.square().sum()))

    def log_determinant(self, cut: float = 1e-2, runs: int = 0, steps: int = 0) -> Iterator[Estimate]:
        threshold = cut * float(self.spectrum[-1])
        if threshold <= 0:
            raise ValueError(f"no eigenvalue is positive (the largest is {self.spectrum[-1]:.3g}): no log-determinant")
        above = self.spectrum[self.spectrum > threshold]
        yield exact(float(above.log().sum()), note=f"{len(above)} eigenvalues above {threshold:.3g}")

    def log_determinant_shifted(self, mu: float, runs: int = 0, steps: int = 0) -> Iterator[Estimate]:
        if float(self.spectrum[0]) + mu <= 0:
            raise ValueError(
                f"with mu = {mu:g} the operator is not positive definite: its smallest eigenvalue is "
                f"{float(self.spectrum[0]):.4g}"
            )
        yield exact(float((self.spectrum + mu).log().sum()))


Spectrum = Sweep | Dense
