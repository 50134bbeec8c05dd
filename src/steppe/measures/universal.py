"""Measures of the (phi, psi, mu) class: any functional of the Hessian that a triple names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from ..core.draw import Draw
from ..core.triple import Triple, identity
from .curvature.operator import Curvature
from .estimate import Cost, Estimate, Kind, Measure, NotFinite, looks, summarise
from .objective import Objective

BLOCK = 10  # draws whose products are made together


@dataclass(frozen=True)
class ZerothOrder(Measure):
    """R_rho, phi(mean of psi((L(w + rho v) - L(w)) / rho^2)), from losses alone (universal-SAM paper, Definition 8)."""

    triple: Triple
    rho: float = 0.01  # universal-SAM paper, appendix O
    n: int = 100

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if not self.rho > 0:
            raise ValueError(f"differences of losses need a radius rho > 0, not {self.rho}")
        before = objective.spent()
        base, grad = objective.gradient()
        psis: list[Tensor] = []
        due = set(looks(self.n))
        for i in range(self.n):
            row = []
            for k, law in enumerate(self.triple.laws):
                draw = Draw(objective.space, (seed, objective.number, i, k), objective.weights, grad)
                loss = objective.loss(law(draw) * self.rho)
                if not isfinite(loss):
                    raise NotFinite(f"the loss is {loss} at draw {i}, radius {self.rho}: measure at a smaller radius")
                row.append((loss - base) / self.rho**2)
            psis.append(self.triple.psis(torch.tensor([row], dtype=torch.float64)))
            if len(psis) in due:
                yield _estimate(self.triple, psis, objective.spent() - before)


@dataclass(frozen=True)
class SecondOrder(Measure):
    """S = phi(mean of psi(v' H v / 2)), from products with the Hessian (universal-SAM paper, Definition 1)."""

    triple: Triple
    n: int = 100

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        before = objective.spent()
        curvature = Curvature(objective)
        grad = curvature.gradient()
        psis: list[Tensor] = []  # of blocks of draws
        due = set(looks(self.n, BLOCK))
        for first in range(0, self.n, BLOCK):
            block = range(first, min(first + BLOCK, self.n))
            vectors = [
                law(Draw(objective.space, (seed, objective.number, i, k), objective.weights, grad))
                for i in block
                for k, law in enumerate(self.triple.laws)
            ]
            images = curvature.products(vectors)
            forms = [float(v.dot(image)) / 2 for v, image in zip(vectors, images, strict=True)]
            rows = torch.tensor(forms, dtype=torch.float64).view(len(block), len(self.triple.laws))
            psis.append(self.triple.psis(rows))
            if block.stop in due:
                yield _estimate(self.triple, psis, objective.spent() - before)


def _estimate(triple: Triple, psis: list[Tensor], cost: Cost) -> Estimate:
    """A triple in logs is measured as its logarithm, which alone fits into a number for networks."""
    kind: Kind = "unbiased" if triple.phi is identity and not triple.logs else "plug-in"
    note = "logarithm" if triple.logs else ""
    without_each = triple.links_without_each
    return summarise(torch.cat(psis), kind, triple.link, without_each=without_each, cost=cost, note=note)
