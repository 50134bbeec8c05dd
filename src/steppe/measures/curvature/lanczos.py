"""The Lanczos process, random probes outside its Krylov space, and spectral densities by Lanczos quadrature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import hypot, isfinite, sqrt
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..._util.notebooks import picture
from ...core.basis import Basis
from ...core.draw import Draw
from ...core.vector import Space, Vector
from ..estimate import Estimate, NotFinite, summarise

Floats = NDArray[np.float64]
RESOLVED = 0.25  # a node counts as an eigenvalue if its residual is below this fraction of it
BLOCK = 5  # probes per call for products, so that few vectors are in memory at once
FORMULA = 0.25  # its share in a trace's variance: Student's intervals of 10 to 33 probes cover 93 to 97 % then
FORMULA_MOST = 4.0  # times the sample variance that the formula may be: rounding limits a difference of squares


class Operator(Protocol):
    """A symmetric linear operator on a space."""

    @property
    def space(self) -> Space: ...
    @property
    def dimension(self) -> int: ...
    def gradient(self) -> Vector: ...
    def product(self, v: Vector) -> Vector: ...
    def products(self, vectors: list[Vector]) -> list[Vector]: ...


def random_source(operator: Operator, *key: int) -> Draw:
    """Random vectors in the operator's space, as a function of the key."""
    return Draw(operator.space, key, operator.space.weights(), operator.space.zeros())


@dataclass(frozen=True)
class Ritz:
    """Approximate eigenvalues in ascending order.

    Parameters
    ----------
    values
        The Ritz values theta.
    vectors
        The Ritz vectors y as columns, in the Krylov basis.
    residuals
        ||A y - theta y||: an eigenvalue lies within this distance.

    """

    values: Floats
    vectors: Floats
    residuals: Floats

    @property
    def weights(self) -> Floats:
        """The weights of the quadrature rule: squared components of the start vector."""
        return np.asarray(np.square(self.vectors[0]))


class Lanczos:
    """Grows the Krylov space of an operator with full reorthogonalisation.

    `start(i)` returns the i-th start vector. One is enough unless the space becomes invariant, which multiple
    eigenvalues can cause.
    """

    def __init__(self, operator: Operator, start: Callable[[int], Vector]):
        self.operator, self.start, self.starts = operator, start, 0
        self.dimension = operator.dimension
        self.basis = Basis(operator.space)
        self.diagonal: list[float] = []
        self.off: list[float] = []  # off[k] couples vectors k and k + 1; the last one couples to the next step
        self._next: Vector | None = None

    @property
    def steps(self) -> int:
        return len(self.diagonal)

    @property
    def invariant(self) -> bool:
        """Whether the operator maps the space into itself."""
        return self.steps > 0 and self.off[-1] == 0

    def step(self) -> None:
        """Add one vector, for one product."""
        if self._next is None:
            if self.steps == self.dimension:
                raise RuntimeError(f"the Krylov space has all {self.steps} dimensions: it cannot grow")
            _, length = self.basis.orthogonalise(self.start(self.starts))
            self.starts += 1
            self._next = self.basis.normalise(length)
        image = self.operator.product(self._next)  # an interrupt up to here changes nothing
        self.basis.append()
        # an image lies along the last two vectors and a new one
        removed, length = self.basis.orthogonalise(image, max(self.steps - 1, 0))
        overlaps = removed.tolist()
        if not isfinite(length) or not all(map(isfinite, overlaps)):
            raise NotFinite("a product with the Hessian is infinite or not a number: the loss has no curvature here")
        self.diagonal.append(overlaps[-1])
        scale = max(length, hypot(*overlaps), *map(abs, self.diagonal), *self.off)
        ends = length <= 10 * torch.finfo(self.operator.space.precision).eps * scale
        ends = ends or self.steps == self.dimension
        self.off.append(0.0 if ends else length)
        self._next = None if ends else self.basis.normalise(length)

    @property
    def known(self) -> int:
        """The number of vectors that are known: one more than the steps, unless the space is invariant."""
        return self.steps + (self._next is not None)

    def components(self, v: Vector, start: int = 0) -> Tensor:
        """The inner products of a vector with all known vectors from one on."""
        return self.basis.coefficients(v, start, self.known)

    def ritz(self) -> Ritz:
        """The Ritz values after all steps."""
        from scipy.linalg.lapack import dstevd  # a quarter of the time of eigh_tridiagonal, with the same bits

        values, vectors, _ = dstevd(self.diagonal, self.off[:-1] or [0.0])
        return Ritz(values, vectors, np.abs(self.off[-1] * vectors[-1]))

    def vector(self, ritz: Ritz, i: int) -> Vector:
        """The i-th approximate eigenvector, of length 1."""
        return self.basis.combined(torch.from_numpy(np.ascontiguousarray(ritz.vectors[:, i])))

    def matrix(self, steps: int) -> Tensor:
        """The tridiagonal matrix of the first steps."""
        off = torch.tensor(self.off[: steps - 1], dtype=torch.float64)
        return torch.diag(torch.tensor(self.diagonal[:steps], dtype=torch.float64)) + off.diag(1) + off.diag(-1)


class Probes:
    """Vectors z of random signs, and what products with them say about the complement of a Krylov space.

    With P the projection onto the complement of the first k vectors, z'PAPz and ||PAz||^2 - ||PA(z - Pz)||^2 have the
    means tr(PAP) and ||PAP||_F^2. Both follow from z'Az, ||Az||^2 and the components of z, because the Lanczos process
    knows A on the space. So every probe counts for the whole space, also if the space grew after its product, and
    neither probes nor products are kept: a probe is drawn again from its seed.

    Parameters
    ----------
    operator
        A symmetric operator A.
    lanczos
        Its Krylov space.
    seed
        Of the signs.

    """

    def __init__(self, operator: Operator, lanczos: Lanczos, seed: int):
        self.operator, self.lanczos, self.seed = operator, lanczos, seed
        self._forms: list[float] = []  # z'Az
        self._norms: list[float] = []  # ||Az||^2
        self._components: list[Tensor] = []  # of z along the vectors of the space and the next one

    def __len__(self) -> int:
        return len(self._forms)

    def add(self, n: int) -> None:
        """Draw n more probes, for one product each; an interrupt loses at most one block."""
        end = len(self) + n
        while len(self) < end:
            probes = [self._probe(i) for i in range(len(self), min(len(self) + BLOCK, end))]
            images = self.operator.products(probes)
            forms = [float(z.dot(image)) for z, image in zip(probes, images, strict=True)]
            norms = [float(image.norm()) ** 2 for image in images]
            components = [self.lanczos.components(z) for z in probes]
            self._components += components
            self._norms += norms
            self._forms += forms

    def trace(self, k: int) -> Estimate:
        """The estimate of tr(PAP).

        Ten draws say little about their variance, and samples that happen to agree would end a search too early. So
        the variance is in part 2 (||PAP||_F^2 - tr(PAP)^2 / rank P), which it does not exceed and nearly equals.
        """
        estimate = summarise(self.traces(k), "unbiased")
        sample = estimate.n * estimate.stderr**2
        formula = 2 * (float(self.squares(k).mean()) - estimate.value**2 / (self.operator.dimension - k))
        variance = (1 - FORMULA) * sample + FORMULA * min(max(formula, 0.0), FORMULA_MOST * sample)
        return replace(estimate, stderr=sqrt(variance / estimate.n))

    def traces(self, k: int) -> Tensor:
        """Draws with mean tr(PAP): z'PAPz - m (||Pz||^2 - rank P), with m the mean eigenvalue that other probes give.

        z'PAPz = z'Az - c'Tc - 2 b c_k c_{k+1}, with c the components of z, as AQ = QT + b q e'. The second term has
        mean zero, and makes the draws of a multiple of the identity exact.
        """
        forms = torch.tensor(self._forms, dtype=torch.float64)
        if not k:
            return forms
        c, off = self._table(k + 1), self.lanczos.off[k - 1]
        inside = c[:, :k]
        forms = forms - (inside @ self.lanczos.matrix(k) * inside).sum(1) - 2 * off * inside[:, -1] * c[:, k]
        lengths = self.operator.dimension - inside.square().sum(1)  # ||Pz||^2
        means = (forms.sum() - forms) / (lengths.sum() - lengths).clamp(min=1e-6)
        return forms - means * (lengths - (self.operator.dimension - k))

    def squares(self, k: int) -> Tensor:
        """Draws with mean ||PAP||_F^2: ||PAz||^2 - ||PA(z - Pz)||^2; ||PAPz||^2 itself takes one more product."""
        norms = torch.tensor(self._norms, dtype=torch.float64)
        if not k:
            return norms
        c, off = self._table(k + 1), self.lanczos.off[k - 1]
        image = c[:, :k] @ self.lanczos.matrix(k)  # Q'Az
        image[:, -1] += off * c[:, k]
        return norms - image.square().sum(1) - (off * c[:, k - 1]).square()

    def _table(self, width: int) -> Tensor:
        """The first components of all probes, one row each; those along vectors that do not exist are 0."""
        for i, known in enumerate(self._components):
            if len(known) < self.lanczos.known:
                new = self.lanczos.components(self._probe(i), len(known))
                self._components[i] = torch.cat([known, new])
        rows = [known[:width] for known in self._components]
        return torch.stack([torch.cat([row, row.new_zeros(width - len(row))]) for row in rows])

    def _probe(self, i: int) -> Vector:
        return random_source(self.operator, self.seed, 1, i).signs()


@dataclass(frozen=True)
class Density:
    """The spectrum of an operator as a distribution; the draws are quadrature rules of random starts.

    Parameters
    ----------
    runs
        One quadrature rule per random start.
    dimension
        Of the operator.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> density = steppe.measures.spectral_density(steppe.measures.Curvature(objective), runs=4)
    >>> round(float(density.count(low=0)), 4)  # both eigenvalues are positive
    2.0

    """

    runs: Sequence[Ritz]
    dimension: int

    _repr_mimebundle_ = picture

    def __repr__(self) -> str:
        return f"Density({len(self.runs)} runs, eigenvalues {self.smallest:.4g} to {self.largest:.4g})"

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

    def plot(self) -> Any:
        """A plotly figure of the density with its standard error, as `figure` draws it."""
        from ..plotting import figure

        return figure(self)

    @property
    def resolution(self) -> float:
        """Above this, every node is an eigenvalue; below, a node represents several eigenvalues."""
        unresolved = [np.abs(run.values[run.residuals > RESOLVED * np.abs(run.values)]) for run in self.runs]
        return max((float(values.max()) for values in unresolved if len(values)), default=0.0)

    def unresolved(self, cut: float) -> bool:
        """Whether nodes above `cut` times the largest stand for several eigenvalues."""
        return 0 < cut * self.largest < self.resolution

    def log_determinant(self, cut: float = 1e-2) -> Estimate:
        """The sum of log(eigenvalue) over those above `cut` times the largest."""
        threshold = cut * self.largest
        if threshold <= 0:
            raise ValueError(
                f"no eigenvalue is positive (the largest is {self.largest:.3g}): there is no log-determinant"
            )
        if self.unresolved(cut):
            raise ValueError(
                f"a cut at {cut:g} of the largest eigenvalue is finer than {len(self.runs)} runs of "
                f"{len(self.runs[0].values)} steps resolve: take cut >= "
                f"{1.005 * self.resolution / self.largest:.3g}, or more steps"  # 0.5 % for rounding to three digits
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


def quadrature_rule(operator: Operator, steps: int, seed: int, number: int) -> Ritz:
    """The quadrature rule of one random start vector."""
    lanczos = Lanczos(operator, lambda _: random_source(operator, seed, 2, number).normal())
    while lanczos.steps < min(steps, operator.dimension) and not lanczos.invariant:
        lanczos.step()
    return lanczos.ritz()


def spectral_density(operator: Operator, runs: int = 10, steps: int = 100, seed: int = 0) -> Density:
    """The spectral density of an operator by stochastic Lanczos quadrature (Ghorbani et al. 2019).

    Parameters
    ----------
    operator
        A `Curvature`, or any symmetric operator.
    runs, steps
        The number of random starts, and of Lanczos steps from each.
    seed
        Of the start vectors.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> density = steppe.measures.spectral_density(steppe.measures.Curvature(objective))
    >>> round(density.smallest, 4), round(density.largest, 4)  # the Hessian is diag(1, 4)
    (1.0, 4.0)

    """
    return Density([quadrature_rule(operator, steps, seed, i) for i in range(runs)], operator.dimension)
