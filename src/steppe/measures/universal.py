"""Measures of the (phi, psi, mu) class of the universal-SAM paper, and its constructive proofs as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from ..core.triple import DETERMINANT, FROBENIUS, TRACE, Triple, identity
from .curvature.operator import Curvature
from .estimate import Estimate, Kind, Measure, NotFinite, report_points, summarise
from .objective import Objective
from .registration import register

BLOCK = 10  # draws per call for Hessian products


@dataclass(frozen=True)
class ZerothOrder(Measure):
    """R_rho = phi(mean of psi((L(w + rho v) - L(w)) / rho^2)), from losses alone (Tahmasebi et al. 2024, Definition 8).

    Parameters
    ----------
    triple
        (phi, psi, mu), e.g. `TRACE`.
    rho
        The radius (0.01: appendix O).
    n
        The number of draws.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> trace = steppe.measures.ZerothOrder(steppe.TRACE, rho=0.1, n=10).estimate(objective)
    >>> round(float(trace), 4)  # tr(H) / 2d, and the Hessian is the identity
    0.5

    """

    triple: Triple
    rho: float = 0.01
    n: int = 100

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if not self.rho > 0:
            raise ValueError(f"differences of losses need a radius rho > 0, not {self.rho}")
        base, grad = objective.gradient()
        psis: list[Tensor] = []
        due = set(report_points(self.n))
        for i in range(self.n):
            row = []
            for k, law in enumerate(self.triple.laws):
                loss = objective.loss(law(objective.draw(seed, objective.number, i, k, grad=grad)) * self.rho)
                if not isfinite(loss):
                    raise NotFinite(f"the loss is {loss} at draw {i}, radius {self.rho}: measure at a smaller radius")
                row.append((loss - base) / self.rho**2)
            psis.append(self.triple.psis(torch.tensor([row], dtype=torch.float64)))
            if len(psis) in due:
                yield _estimate(self.triple, psis)


@register(
    "zeroth_trace", kind="unbiased", cost="1 gradient and 100 losses", paper="Tahmasebi et al. 2024",
    label="Hessian trace from losses", does="the trace from losses at random points near the weights",
)  # fmt: skip
def zeroth_trace() -> ZerothOrder:
    return ZerothOrder(TRACE)


@register(
    "zeroth_frobenius_squared", kind="plug-in", cost="1 gradient and 100 losses", paper="Tahmasebi et al. 2024",
    label="squared Frobenius norm from losses",
    does="the squared Frobenius norm from losses at random points near the weights",
)  # fmt: skip
def zeroth_frobenius_squared() -> ZerothOrder:
    return ZerothOrder(FROBENIUS)


@register(
    "zeroth_determinant", kind="plug-in", cost="1 gradient and 100 losses", paper="Tahmasebi et al. 2024",
    label="determinant term from losses",
    does="the determinant term from losses at random points near the weights, as a logarithm",
)  # fmt: skip
def zeroth_determinant() -> ZerothOrder:
    return ZerothOrder(DETERMINANT, 1.0)  # radius: appendix O


@dataclass(frozen=True)
class SecondOrder(Measure):
    """S = phi(mean of psi(v' H v / 2)), from products with the Hessian (Tahmasebi et al. 2024, Definition 1).

    Parameters
    ----------
    triple
        (phi, psi, mu), e.g. `TRACE`.
    n
        The number of draws.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> trace = steppe.measures.SecondOrder(steppe.TRACE, n=10).estimate(objective)
    >>> round(float(trace), 4)  # tr(H) / 2d, and the Hessian is the identity
    0.5

    """

    triple: Triple
    n: int = 100

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        curvature = Curvature(objective)
        grad = curvature.gradient()
        psis: list[Tensor] = []  # one tensor per block
        due = set(report_points(self.n, BLOCK))
        for first in range(0, self.n, BLOCK):
            block = range(first, min(first + BLOCK, self.n))
            vectors = [
                law(objective.draw(seed, objective.number, i, k, grad=grad))
                for i in block
                for k, law in enumerate(self.triple.laws)
            ]
            images = curvature.products(vectors)
            forms = [float(v.dot(image)) / 2 for v, image in zip(vectors, images, strict=True)]
            rows = torch.tensor(forms, dtype=torch.float64).view(len(block), len(self.triple.laws))
            psis.append(self.triple.psis(rows))
            if block.stop in due:
                yield _estimate(self.triple, psis)


def _estimate(triple: Triple, psis: list[Tensor]) -> Estimate:
    """Triples in logs are estimated as logarithms: for networks the value itself overflows."""
    kind: Kind = "unbiased" if triple.phi is identity and not triple.logs else "plug-in"
    note = "logarithm" if triple.logs else ""
    return summarise(torch.cat(psis), kind, triple.link, without_each=triple.links_without_each, note=note)


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
    >>> steppe.measures.exponential_integrals(torch.tensor([1.0, 7.0]), [-1.0])  # (2 * 8) ** -0.5
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
    >>> integrals = steppe.measures.exponential_integrals(torch.tensor([1.0, 7.0]), sigmas)
    >>> steppe.measures.spectrum_from_exponentials(integrals, sigmas).round(decimals=4)
    tensor([1., 7.], dtype=torch.float64)

    """
    import numpy as np

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
    >>> steppe.measures.hessian_from_point_masses(lambda v: float(2 * v[0] ** 2 + 2 * v[0] * v[1] + 3 * v[1] ** 2), 2)
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
