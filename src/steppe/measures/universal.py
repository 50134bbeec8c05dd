"""Measures of the (phi, psi, mu) class of the universal-SAM paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from ..core.fields import Count, Positive
from ..core.triple import DETERMINANT, FROBENIUS, TRACE, Triple, identity
from .curvature.operator import Curvature
from .estimate import Estimate, Kind, Measure, NotFinite, report_points, summarise
from .objective import Objective
from .registration import register

BLOCK = 10  # draws per call for Hessian products


@register(
    "zeroth_determinant", kind="plug-in", cost="1 gradient and 100 losses", paper="Tahmasebi et al. 2024",
    label="determinant term from losses",
    does="the determinant term from losses at random points near the weights, as a logarithm",
    args=(DETERMINANT, 1.0),  # radius: appendix O
)  # fmt: skip
@register(
    "zeroth_frobenius_squared", kind="plug-in", cost="1 gradient and 100 losses", paper="Tahmasebi et al. 2024",
    label="squared Frobenius norm from losses",
    does="the squared Frobenius norm from losses at random points near the weights",
    args=(FROBENIUS, 0.01),
)  # fmt: skip
@register(
    "zeroth_trace", kind="unbiased", cost="1 gradient and 100 losses", paper="Tahmasebi et al. 2024",
    label="Hessian trace from losses", does="the trace from losses at random points near the weights",
    args=(TRACE, 0.01),
)  # fmt: skip
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
    rho: Positive = 0.01
    n: Count = 100

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
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
    n: Count = 100

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
