"""Why triples reach every function of the Hessian: the constructions of the universal-SAM paper, as functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def exponential_integrals(eigenvalues: Tensor, sigmas: Sequence[float]) -> Tensor:
    """E exp(sigma v' H v / 2) over Gaussian v for every sigma, the product of (1 - sigma lambda_i)^(-1/2): eq. 45."""
    factors = 1 - torch.as_tensor(sigmas, dtype=torch.float64)[:, None] * eigenvalues.double()
    if bool((factors <= 0).any()):
        raise ValueError(
            f"the integral is finite for sigma lambda < 1 alone: {list(sigmas)} go beyond that for eigenvalues from "
            f"{float(eigenvalues.min()):.4g} to {float(eigenvalues.max()):.4g}"
        )
    return factors.prod(1).rsqrt()


def spectrum_from_exponentials(integrals: Tensor, sigmas: Sequence[float]) -> Tensor:
    """The d eigenvalues of a Hessian from d such integrals at different non-zero sigmas (Theorem 6).

    t^-2 is the polynomial (1 - sigma lambda_1) ... (1 - sigma lambda_d) at sigma: d values and p(0) = 1 fix its
    coefficients, which are those of the characteristic polynomial, and its roots are the eigenvalues.
    """
    import numpy as np

    x = np.asarray(sigmas, dtype=np.float64)
    if not len(set(x)) == len(x) == len(integrals) or 0 in x:
        raise ValueError(f"one integral for each of d different sigmas, none of them 0, not {list(sigmas)}")
    scale = np.abs(x).max()  # powers of a small sigma would drown in rounding
    values = integrals.double().numpy() ** -2.0 - 1
    powers = np.vander(x / scale, len(x) + 1, increasing=True)[:, 1:]
    coefficients = np.linalg.solve(powers, values)
    roots = np.roots(np.concatenate([[1.0], coefficients]))
    return torch.from_numpy(np.sort(roots.real) / scale)


def hessian_from_point_masses(form: Callable[[Tensor], float], d: int) -> Tensor:
    """A symmetric matrix from its form v -> v' H v at the d (d + 1) / 2 points e_i and e_i + e_j alone (Theorem 7)."""
    units = torch.eye(d, dtype=torch.float64)
    diagonal = torch.tensor([form(e) for e in units], dtype=torch.float64)
    matrix = torch.diag(diagonal)
    for i in range(d):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = (form(units[i] + units[j]) - diagonal[i] - diagonal[j]) / 2
    return matrix
