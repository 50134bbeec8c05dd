"""The Lanczos process: a small tridiagonal matrix whose eigenvalues approximate the operator's extreme ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.basis import Basis
from ...core.vector import Space, Vector
from ..estimate import NotFinite


class Operator(Protocol):
    """A symmetric linear operator on a space."""

    @property
    def space(self) -> Space: ...
    @property
    def dimension(self) -> int: ...
    def gradient(self) -> Vector: ...
    def product(self, v: Vector) -> Vector: ...
    def products(self, vectors: list[Vector]) -> list[Vector]: ...


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

    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    residuals: NDArray[np.float64]

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights of the quadrature rule: squared components of the start vector."""
        return np.asarray(np.square(self.vectors[0]))


class Lanczos:
    """Grows the Krylov space of an operator with full reorthogonalisation.

    `start(i)` returns the i-th start vector. One is enough unless the space becomes invariant, which multiple
    eigenvalues can cause.
    """

    def __init__(self, operator: Operator, start: Callable[[int], Vector]):
        self.operator, self.start, self.starts = operator, start, 0
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
            self._next = self._restart()
        q = self._next
        image = self.operator.product(q)  # an interrupt up to here changes nothing
        self.basis.append(q)
        overlaps = self.basis.remove_(image)
        length = float(image.norm())
        if not np.isfinite(length) or not bool(torch.isfinite(overlaps).all()):
            raise NotFinite("a product with the Hessian is infinite or not a number: the loss has no curvature here")
        self.diagonal.append(float(overlaps[-1]))
        scale = max(length, float(overlaps.norm()), *map(abs, self.diagonal), *self.off)
        ends = length <= 10 * torch.finfo(self.operator.space.precision).eps * scale
        ends = ends or self.steps == self.operator.dimension
        self.off.append(0.0 if ends else length)
        self._next = None if ends else image.mul_(1 / length)

    def _restart(self) -> Vector:
        if self.steps == self.operator.dimension:
            raise RuntimeError(f"the Krylov space has all {self.steps} dimensions: it cannot grow")
        q = self.start(self.starts).clone()
        self.starts += 1
        self.basis.remove_(q)
        return q.mul_(1 / q.norm())

    def ritz(self, steps: int | None = None) -> Ritz:
        """The Ritz values after the first steps, or after all of them."""
        from scipy.linalg import eigh_tridiagonal

        k = self.steps if steps is None else steps
        values, vectors = eigh_tridiagonal(np.array(self.diagonal[:k]), np.array(self.off[: k - 1]))
        return Ritz(values, vectors, np.abs(self.off[k - 1] * vectors[-1]))

    def vector(self, ritz: Ritz, i: int) -> Vector:
        """The i-th approximate eigenvector, of length 1."""
        return self.basis.combined(torch.from_numpy(np.ascontiguousarray(ritz.vectors[:, i])))

    def matrix(self, steps: int) -> Tensor:
        """The tridiagonal matrix of the first steps."""
        off = torch.tensor(self.off[: steps - 1], dtype=torch.float64)
        return torch.diag(torch.tensor(self.diagonal[:steps], dtype=torch.float64)) + off.diag(1) + off.diag(-1)
