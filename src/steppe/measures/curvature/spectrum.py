"""The spectrum of an operator, estimated from products that its quantities share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite, sqrt
from typing import Literal, cast

import torch
from torch import Tensor

from ...core.basis import flat, unflat
from ...core.vector import Vector, inverse
from ..estimate import Estimate, Kind, NotFinite, exact, summarise
from .lanczos import BLOCK, Density, Lanczos, Operator, Probes, Ritz, quadrature_rule, random_source

End = Literal["top", "bottom"]
DENSE_MOST = 20_000  # parameters: the matrix takes 3.2 GB then
COLUMNS = 32  # of a dense matrix per call for products
RANDOM = 0.1  # length of the random part of the start vector, beside a gradient of length 1
PER_PROBE = 2  # steps of the Krylov space per probe; 1 is much less accurate where the spectrum decays fast
LEAST_PROBES = 10  # for a standard error that a search may stop at
DEFLATION_BYTES = 1 << 31  # for vectors of the Krylov space ...
LEAST_DEFLATION = 15  # ... of which traces take at least so many


def _check_index(operator: Operator, k: int, end: End) -> None:
    if not 1 <= k <= operator.dimension:
        raise ValueError(f"there are {operator.dimension} eigenvalues, and no {k}-th one from the {end}")


@dataclass(frozen=True)
class Pair:
    """An approximate eigenvalue and eigenvector; an eigenvalue lies within the residual."""

    value: float
    vector: Vector
    residual: float


class Sweep:
    """Spectral estimates of an operator that share their products; each one adds only the products that it needs.

    Eigenvalues come from a Lanczos process. Trace and Frobenius norm are exact on its Krylov space, at no extra cost,
    and estimated by random probes on the complement, where little variance is left. The space grows with the probes,
    two vectors for each, as in Hutch++ (Meyer et al. 2021), which takes two products per vector where Lanczos takes
    one. A multiple eigenvalue counts once unless the Krylov space becomes invariant, as in any Lanczos process.

    Parameters
    ----------
    operator
        A `Curvature`, or any symmetric operator.
    seed
        Of the start vector and the probes.
    deflate
        The largest dimension to which traces let the Krylov space grow, which bounds their memory; 0 is Hutchinson's
        estimator. None takes as many vectors as fit into 2 GiB, but at least 15.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> sweep = steppe.measures.Sweep(steppe.measures.Curvature(objective))
    >>> [round(pair.value, 4) for pair in sweep.pairs(2)]
    [4.0, 1.0]
    >>> *_, trace = sweep.trace()
    >>> print(trace, sweep.products)  # the trace takes no further product
    5 (exact) 2

    """

    def __init__(self, operator: Operator, seed: int = 0, deflate: int | None = None):
        self.operator, self.seed = operator, seed
        if deflate is None:  # what fits into memory; no function of the memory that happens to be free
            bytes_each = operator.dimension * operator.space.precision.itemsize
            deflate = max(LEAST_DEFLATION, DEFLATION_BYTES // bytes_each)
        self.deflate = min(deflate, operator.dimension)
        self.lanczos = Lanczos(operator, partial(start_vector, operator, seed))
        self.probes = Probes(operator, self.lanczos, seed)
        self._invariant_at: dict[tuple[int, End], float] = {}  # k-th eigenvalues of the last invariant space
        self._dense_products = 0
        self._rules: dict[int, list[Ritz]] = {}  # quadrature rules by their number of steps

    @property
    def products(self) -> int:
        """The number of products so far."""
        rules = sum(len(rule.values) for same_length in self._rules.values() for rule in same_length)
        return self.lanczos.steps + len(self.probes) + rules + self._dense_products

    def eigenvalues(self, k: int = 1, end: End = "top", rtol: float = 1e-3, most: int = 200) -> Iterator[Estimate]:
        """Yield estimates of the k-th eigenvalue from one end until its residual is below rtol times it."""
        _check_index(self.operator, k, end)
        kind: Kind = "lower bound" if end == "top" else "upper bound"
        enough = 1 if k == 1 else 2 * k + 10  # a low-dimensional invariant space shows by then
        while self.lanczos.steps < k:
            self.lanczos.step()
        while True:
            ritz = self.lanczos.ritz()
            i = _index(ritz, k, end)
            estimate = Estimate(float(ritz.values[i]), float(ritz.residuals[i]), 1, kind)
            if self.lanczos.steps == self.operator.dimension:
                estimate = exact(estimate.value)
            yield estimate
            if self.lanczos.invariant:  # multiple eigenvalues show in the spaces of further starts
                if k == 1 or self._invariant_at.get((k, end)) == estimate.value:
                    return
                self._invariant_at[k, end] = estimate.value
            # not the squared residual over the gap: of two eigenvalues 1.5 % apart that chose the lower one
            elif self.lanczos.steps >= enough:
                outermost = ritz.residuals[-k:] if end == "top" else ritz.residuals[:k]
                if max(outermost.tolist()) <= rtol * abs(estimate.value):
                    return
            if self.lanczos.steps >= min(most, self.operator.dimension):
                return
            self.lanczos.step()

    def pairs(self, k: int, end: End = "top", rtol: float = 1e-3, most: int = 200) -> list[Pair]:
        """The k outermost eigenvalues from one end with their eigenvectors."""
        for _ in self.eigenvalues(k, end, rtol, most):
            pass
        ritz = self.lanczos.ritz()
        indices = [_index(ritz, j + 1, end) for j in range(k)]
        return [Pair(float(ritz.values[i]), self.lanczos.vector(ritz, i), float(ritz.residuals[i])) for i in indices]

    def trace(self, rtol: float = 0.02, most: int = 200) -> Iterator[Estimate]:
        """Yield estimates of the trace until the standard error is below rtol times it; all of `most` if rtol is 0."""
        return self._deflated(lambda k: sum(self.lanczos.diagonal[:k]), self.probes.trace, rtol, most)

    def frobenius_squared(self, rtol: float = 0.02, most: int = 200) -> Iterator[Estimate]:
        """Yield estimates of the sum of squared eigenvalues until the standard error is below rtol times it."""

        def known(k: int) -> float:
            return float(self.lanczos.matrix(k).square().sum()) + 2 * self.lanczos.off[k - 1] ** 2 if k else 0.0

        return self._deflated(known, lambda k: summarise(self.probes.squares(k), "unbiased"), rtol, most)

    def log_determinant(self, cut: float = 1e-2, runs: int = 10, steps: int = 100) -> Iterator[Estimate]:
        """The sum of log(eigenvalue) over those above `cut` times the largest.

        Exact, from the whole matrix, if the runs do not resolve the cut and the matrix takes no more products.
        """
        if self._dense_products:  # the matrix is known
            yield from self._dense.log_determinant(cut)
            return
        for density in self._densities(runs, steps):
            if density.unresolved(cut) and self.operator.dimension <= min(runs * steps, DENSE_MOST):
                yield from self._dense.log_determinant(cut)
                return
            yield density.log_determinant(cut)

    def log_determinant_shifted(self, mu: float, runs: int = 10, steps: int = 100) -> Iterator[Estimate]:
        """The log-determinant of the operator plus mu times the identity."""
        for density in self._densities(runs, steps):
            yield density.log_determinant_shifted(mu)

    @cached_property
    def _dense(self) -> Dense:
        dense = Dense(self.operator)
        _ = dense.matrix
        self._dense_products = self.operator.dimension
        return dense

    def _densities(self, runs: int, steps: int) -> Iterator[Density]:
        """Densities of more and more runs; runs of one length are kept for the next measure."""
        rules = self._rules.setdefault(steps, [])
        if len(rules) >= runs:
            yield Density(rules[:runs], self.operator.dimension)
        while len(rules) < runs:
            rules.append(quadrature_rule(self.operator, steps, self.seed, len(rules)))
            if len(rules) >= min(2, runs):
                yield Density(rules, self.operator.dimension)

    def _deflations(self, most: int) -> Iterator[int]:
        """Yield the dimension of the space that probes leave out: now, and after every further round of products."""
        if len(self.probes) or self.lanczos.steps == self.operator.dimension:
            yield self.lanczos.steps if self.deflate else 0
        while self.lanczos.steps < self.operator.dimension and self._round(most):
            yield self.lanczos.steps if self.deflate else 0

    def _round(self, most: int) -> bool:
        """Let the space and the number of probes grow; False if that takes more than `most` products in all."""
        n, steps = len(self.probes), self.lanczos.steps

        def dimension(probes: int) -> int:
            return max(steps, min(PER_PROBE * probes, self.deflate))

        more = 0
        while more <= n:  # by a quarter, because a round draws all probes again to project them
            more += max(BLOCK, more // 4 // BLOCK * BLOCK)
        while more > max(n, 2) and dimension(more) + more > most:
            more -= 1
        if more <= n:
            return False
        goal = dimension(more)
        if self.deflate == self.operator.dimension and self.deflate <= goal + more - n:
            goal, more = self.deflate, n  # the same products leave nothing to chance
        while self.lanczos.steps < goal:
            self.lanczos.step()
        self.probes.add(more - n)
        return True

    def _deflated(
        self, known: Callable[[int], float], remainder: Callable[[int], Estimate], rtol: float, most: int
    ) -> Iterator[Estimate]:
        """Yield the part on the Krylov space of dimension k plus the estimate by probes on its complement."""
        for k in self._deflations(most):
            if k == self.operator.dimension:
                yield exact(known(k))
                return
            rest = remainder(k)
            kind: Kind = "plug-in" if rtol > 0 else rest.kind  # a number of draws that depends on them causes a bias
            estimate = replace(rest, value=known(k) + rest.value, kind=kind)
            yield estimate
            if estimate.n >= LEAST_PROBES and estimate.stderr <= rtol * abs(estimate.value):
                return


def start_vector(operator: Operator, seed: int, i: int) -> Vector:
    """The gradient, which lies mostly along outermost eigenvectors, plus noise in case it is orthogonal to one."""
    start = random_source(operator, seed, 0, i).normal()
    start.mul_(inverse(start.norm()))
    if i == 0:
        slope = operator.gradient()
        start.mul_(RANDOM).add_(slope, inverse(slope.norm()))
    return start


def hutchinson(operator: Operator, seed: int = 0) -> Sweep:
    """A `Sweep` whose traces are means over random signs, without deflation (Hutchinson 1990).

    Parameters
    ----------
    operator, seed
        As in `Sweep`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> trace = steppe.measures.Trace(rtol=0.0, most=20, by=steppe.measures.hutchinson).estimate(objective)
    >>> trace.value, trace.kind  # signs have no variance where the Hessian is diagonal
    (5.0, 'unbiased')

    """
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

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> entries, errors = steppe.measures.diagonal(steppe.measures.Curvature(objective), n=2)
    >>> entries.tensors, errors.tensors  # signs have no variance where the Hessian is diagonal
    ([tensor([[1., 4.]])], [tensor([[0., 0.]])])

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


def _index(ritz: Ritz, k: int, end: End) -> int:
    """The index of the k-th value from one end, or of the last one."""
    n = len(ritz.values)
    return max(n - k, 0) if end == "top" else min(k - 1, n - 1)


class Dense:
    """The same quantities as `Sweep`, exactly, for one product per parameter.

    Parameters
    ----------
    operator
        A `Curvature`, or any symmetric operator, of at most 20 000 parameters.
    seed
        Unused: nothing is random.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> steppe.measures.Dense(steppe.measures.Curvature(objective)).spectrum
    tensor([1., 4.], dtype=torch.float64)

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
