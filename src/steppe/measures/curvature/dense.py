"""The spectrum of a small operator from its matrix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor

from ...core.basis import flat, unflat
from ..estimate import Estimate, NotFinite, exact
from .lanczos import Operator

End = Literal["top", "bottom"]
DENSE_MOST = 20_000  # parameters: the matrix takes 3.2 GB then
COLUMNS = 32  # of a dense matrix per call for products


def check_index(operator: Operator, k: int, end: End) -> None:
    if not 1 <= k <= operator.dimension:
        raise ValueError(f"there are {operator.dimension} eigenvalues, and no {k}-th one from the {end}")


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
        check_index(self.operator, k, end)
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
