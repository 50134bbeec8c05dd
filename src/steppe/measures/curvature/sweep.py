"""x"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Literal

import numpy as np
import torch

from ...core.ball import inverse
from ...core.draw import Draw
from ...core.vector import Vector
from ..estimate import Estimate, Kind, NotFinite, summarise
from .density import Density, quadrature_rule
from .lanczos import Lanczos, Operator, Ritz


def diagonal(operator: Operator, n: int = 100, seed: int = 0) -> tuple[Vector, Vector]:
    """An unbiased estimate of every diagonal entry and its standard error, from n products."""
    if n < 2:
        raise ValueError(f"a standard error needs at least two probes, not n = {n}")
    space = operator.space
    total, squares = space.zeros(), space.zeros()
    for i in range(n):
        z = Draw(space, (seed, 3, i), space.weights(), space.zeros()).signs()
        entries = operator.product(z).mul_(z)
        total.add_(entries)
        squares.add_(entries * entries)
    if not isfinite(float(squares.norm())):
        raise NotFinite("a product with the operator is infinite or not a number: it has no diagonal")
    mean = total * (1 / n)
    variance = (squares * (1 / n)).add_(mean * mean, -1.0)
    return mean, variance.map(lambda x: torch.sqrt(x.clamp(min=0)) / sqrt(n - 1))


End = Literal["top", "bottom"]
RANDOM = 0.1  # beside a gradient of length 1, which mostly lies along the largest eigenvectors but may miss one
BLOCK = 5  # probes between two looks at the error


@dataclass(frozen=True)
class Pair:
    """An eigenvalue with its eigenvector and its residual."""

    value: float
    vector: Vector
    residual: float  # an eigenvalue lies within this distance


class Sweep:
    """What is known of an operator's spectrum so far; a question extends it only as far as it needs.

    An eigenvalue that occurs several times is found once where the space never turns invariant, as in any Lanczos run.

    Eigenvalues grow a Krylov space. Trace and Frobenius norm are exact on that space, which costs nothing more,
    and estimated by random probes on its complement, where little is left to vary. `deflate` is how many
    vectors the space has at least before the first probe: 0 is Hutchinson's estimator.
    """

    def __init__(self, operator: Operator, seed: int = 0, deflate: int = 15):
        self.operator, self.seed, self.deflate = operator, seed, deflate
        self.lanczos = Lanczos(operator, self._start)
        self._deflated: int | None = None  # as many basis vectors as the probes leave out, fixed by the first probe
        self._traces: list[float] = []
        self._squares: list[float] = []
        self._invariant_at: dict[
            tuple[int, End], float
        ] = {}  # k-th eigenvalues when a space turned out to be invariant
        self._rules: dict[int, list[Ritz]] = {}  # by their number of steps

    @property
    def products(self) -> int:
        """How many products with the operator were made."""
        rules = sum(len(rule.values) for known in self._rules.values() for rule in known)
        return self.lanczos.steps + len(self._traces) + rules

    def eigenvalues(self, k: int = 1, end: End = "top", rtol: float = 1e-3, most: int = 200) -> Iterator[Estimate]:
        """Better and better estimates of the k-th eigenvalue from one end, until its residual is under rtol of it."""
        if k < 1 or k > self.operator.dimension:
            raise ValueError(f"there are {self.operator.dimension} eigenvalues, and no {k}-th one from the {end}")
        enough = 1 if k == 1 else 2 * k + 10  # a space of few dimensions turns out to be invariant by then
        for ritz in self._growing(k, most):
            i = _index(ritz, k, end)
            found = self._eigenvalue(ritz, i, end)
            yield found
            if self.lanczos.invariant:  # what occurs twice shows in further spaces; the next one has all that is left
                if k == 1 or self._invariant_at.get((k, end)) == found.value:
                    return
                self._invariant_at[k, end] = found.value
            # the residual itself, not its square over a gap: of two eigenvalues 1.5 % apart that took the lower one
            elif self.lanczos.steps >= enough and np.all(
                ritz.residuals[_wanted(ritz, k, end)] <= rtol * abs(ritz.values[i])
            ):
                return

    def pairs(self, k: int, end: End = "top", rtol: float = 1e-3, most: int = 200) -> list[Pair]:
        """The k outermost eigenvalues from one end with their vectors."""
        for _ in self.eigenvalues(k, end, rtol, most):
            pass
        ritz = self.lanczos.ritz()
        found = [_index(ritz, j + 1, end) for j in range(k)]
        return [Pair(float(ritz.values[i]), self.lanczos.vector(ritz, i), float(ritz.residuals[i])) for i in found]

    def trace(self, rtol: float = 0.02, most: int = 200) -> Iterator[Estimate]:
        """Better and better estimates of the trace, until the standard error is under rtol of it."""
        for probes in self._probing():
            k = self._deflated or 0
            yield self._with_complement(sum(self.lanczos.diagonal[:k]), self._traces)
            if self._settled(self._traces, sum(self.lanczos.diagonal[:k]), rtol, probes, most):
                return

    def frobenius_squared(self, rtol: float = 0.02, most: int = 200) -> Iterator[Estimate]:
        """Better and better estimates of the sum of squared eigenvalues."""
        for probes in self._probing():
            k = self._deflated or 0
            known = float(self.lanczos.matrix(k).square().sum()) + self.lanczos.off[k - 1] ** 2 if k else 0.0
            yield self._with_complement(known, self._squares)
            if self._settled(self._squares, known, rtol, probes, most):
                return

    def log_determinant(self, cut: float = 1e-2, runs: int = 10, steps: int = 100) -> Iterator[Estimate]:
        """The sum of log(eigenvalue) over those above `cut` times the largest."""
        for density in self._densities(runs, steps):
            yield density.log_determinant(cut)

    def log_determinant_shifted(self, mu: float, runs: int = 10, steps: int = 100) -> Iterator[Estimate]:
        """The log-determinant of the operator plus mu times the identity."""
        for density in self._densities(runs, steps):
            yield density.log_determinant_shifted(mu)

    def _densities(self, runs: int, steps: int) -> Iterator[Density]:
        """Densities of more and more runs; those of one length are kept for the next question."""
        known = self._rules.setdefault(steps, [])
        if len(known) >= runs:
            yield Density(known[:runs], self.operator.dimension)
        while len(known) < runs:
            known.append(quadrature_rule(self.operator, steps, self._random(2, len(known)).normal()))
            if len(known) >= min(2, runs):
                yield Density(known, self.operator.dimension)

    def _growing(self, k: int, most: int) -> Iterator[Ritz]:
        """The process's knowledge as it is, and after every further step."""
        while self.lanczos.steps < k:
            self.lanczos.step()
        while True:
            yield self.lanczos.ritz()
            if self.lanczos.steps >= min(most, self.operator.dimension):
                return
            self.lanczos.step()

    def _probing(self) -> Iterator[int]:
        """How many probes there are, and after every further block of them."""
        if self._deflated is None:
            wanted = min(self.deflate, self.operator.dimension)
            while self.lanczos.steps < wanted:
                self.lanczos.step()
            self._deflated = self.lanczos.steps if self.deflate else 0
        if self._traces or self._deflated == self.operator.dimension:
            yield len(self._traces)
        while self._deflated < self.operator.dimension:
            self._probe(BLOCK)
            yield len(self._traces)

    def _probe(self, n: int) -> None:
        probes = [self._random(1, len(self._traces) + i).signs() for i in range(n)]
        for z in probes:
            self.lanczos.basis.remove_(z, self._deflated)
        images = self.operator.products(probes)
        self._traces += [float(z.dot(image)) for z, image in zip(probes, images, strict=True)]
        self._squares += [float(image.norm()) ** 2 for image in images]

    def _with_complement(self, known: float, draws: list[float]) -> Estimate:
        if not draws:  # the space is all there is
            return Estimate(known, 0.0, 1, "exact")
        rest = summarise(torch.tensor(draws, dtype=torch.float64), "unbiased")
        return replace(rest, value=known + rest.value)

    def _settled(self, draws: list[float], known: float, rtol: float, probes: int, most: int) -> bool:
        if not draws or self.lanczos.steps + len(draws) + BLOCK > most:
            return True
        found = self._with_complement(known, draws)
        return probes >= 2 * BLOCK and found.stderr <= rtol * abs(found.value)

    def _eigenvalue(self, ritz: Ritz, i: int, end: End) -> Estimate:
        exact = self.lanczos.steps == self.operator.dimension
        kind: Kind = "exact" if exact else ("lower bound" if end == "top" else "upper bound")
        return Estimate(float(ritz.values[i]), 0.0 if exact else float(ritz.residuals[i]), 1, kind)

    def _start(self, i: int) -> Vector:
        """The gradient, which mostly lies along the outermost eigenvectors, and a random part lest it misses one."""
        start = self._random(0, i).normal()
        start.mul_(inverse(start.norm()))
        if i == 0:
            slope = self.operator.gradient()
            start.mul_(RANDOM).add_(slope, inverse(slope.norm()))
        return start

    def _random(self, *key: int) -> Draw:
        space = self.operator.space
        return Draw(space, (self.seed, *key), space.weights(), space.zeros())


def hutchinson(operator: Operator, seed: int = 0) -> Sweep:
    """A sweep whose traces are plain means over random signs, with nothing deflated (Hutchinson 1990)."""
    return Sweep(operator, seed, deflate=0)


def _index(ritz: Ritz, k: int, end: End) -> int:
    """Where the k-th value from one end is, or the last one known."""
    n = len(ritz.values)
    return max(n - k, 0) if end == "top" else min(k - 1, n - 1)


def _wanted(ritz: Ritz, k: int, end: End) -> slice:
    return slice(max(len(ritz.values) - k, 0), None) if end == "top" else slice(0, k)
