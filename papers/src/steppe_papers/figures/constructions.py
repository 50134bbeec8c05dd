"""The constructive proofs of the universal-SAM paper: a spectrum from exponentials, a Hessian from point masses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def exponential_integrals(eigenvalues: Tensor, sigmas: Sequence[float]) -> Tensor:
    """E exp(sigma v' H v / 2) over Gaussian v for every sigma: the product of (1 - sigma lambda_i)^(-1/2).

    Tahmasebi et al. 2024, eq. 45.

    Parameters
    ----------
    eigenvalues
        Of the Hessian H.
    sigmas
        Numbers with sigma lambda < 1 for every eigenvalue.

    Examples
    --------
    >>> figures.exponential_integrals(torch.tensor([1.0, 7.0]), [-1.0])  # (2 * 8) ** -0.5
    tensor([0.2500], dtype=torch.float64)

    """
    factors = 1 - torch.as_tensor(sigmas, dtype=torch.float64)[:, None] * eigenvalues.double()
    if bool((factors <= 0).any()):
        raise ValueError(
            f"the integral is finite only for sigma lambda < 1, which {list(sigmas)} violate for eigenvalues from "
            f"{float(eigenvalues.min()):.4g} to {float(eigenvalues.max()):.4g}"
        )
    return factors.prod(1).rsqrt()


def spectrum_from_exponentials(integrals: Tensor, sigmas: Sequence[float]) -> Tensor:
    """The d eigenvalues of a Hessian from d `exponential_integrals` at different non-zero sigmas.

    Tahmasebi et al. 2024, Theorem 6: integral^-2 is the polynomial (1 - sigma lambda_1) ... (1 - sigma lambda_d) at
    sigma. Its d values and p(0) = 1 determine its coefficients, which are those of the characteristic polynomial; the
    roots are the eigenvalues.

    Parameters
    ----------
    integrals, sigmas
        The integrals, and the sigma of each.

    Examples
    --------
    >>> sigmas = [-1.0, -2.0]
    >>> integrals = figures.exponential_integrals(torch.tensor([1.0, 7.0]), sigmas)
    >>> figures.spectrum_from_exponentials(integrals, sigmas).round(decimals=4)
    tensor([1., 7.], dtype=torch.float64)

    """
    x = np.asarray(sigmas, dtype=np.float64)
    if not len(set(x)) == len(x) == len(integrals) or 0 in x:
        raise ValueError(f"give one integral for each of d different sigmas, none of them 0, not {list(sigmas)}")
    scale = np.abs(x).max()  # avoids powers of small numbers
    values = integrals.double().numpy() ** -2.0 - 1
    powers = np.vander(x / scale, len(x) + 1, increasing=True)[:, 1:]
    coefficients = np.linalg.solve(powers, values)
    roots = np.roots(np.concatenate([[1.0], coefficients]))
    return torch.from_numpy(np.sort(roots.real) / scale)


def hessian_from_point_masses(form: Callable[[Tensor], float], d: int) -> Tensor:
    """A symmetric matrix from its form v -> v' H v at the d (d + 1) / 2 points e_i and e_i + e_j.

    Tahmasebi et al. 2024, Theorem 7.

    Parameters
    ----------
    form, d
        The quadratic form, and its dimension.

    Examples
    --------
    >>> form = lambda v: float(2 * v[0] ** 2 + 2 * v[0] * v[1] + 3 * v[1] ** 2)
    >>> figures.hessian_from_point_masses(form, 2)
    tensor([[2., 1.],
            [1., 3.]], dtype=torch.float64)

    """
    units = torch.eye(d, dtype=torch.float64)
    diagonal = torch.tensor([form(e) for e in units], dtype=torch.float64)
    matrix = torch.diag(diagonal)
    for i in range(d):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = (form(units[i] + units[j]) - diagonal[i] - diagonal[j]) / 2
    return matrix
