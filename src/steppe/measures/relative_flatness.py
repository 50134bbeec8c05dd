"""Relative flatness of one layer: the trace of its Hessian blocks, weighted by the layer's own weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.draw import seed_of
from .curvature.operator import Curvature
from .estimate import Estimate, Measure, summarise
from .objective import Objective

BLOCK = 5  # draws between two estimates


@dataclass(frozen=True)
class RelativeFlatness(Measure):
    """sum over rows s, s' of <w_s, w_s'> tr(H_ss') for one weight matrix (Petzka et al. 2021, Definition 3).

    Parameters
    ----------
    layer
        The name of the parameter; None takes the last matrix, as the paper measures the layer after the features.
    n
        At most this many draws.
    rtol
        The relative standard error at which the measure stops.

    """

    layer: str | None = None
    n: int = 100
    rtol: float = 0.05

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        matrices = [n for n, p in objective.params.items() if p.ndim >= 2]
        if not matrices:
            raise ValueError("relative flatness needs a weight matrix, and no parameter that moves is one")
        name = self.layer or matrices[-1]
        if name not in matrices:
            raise ValueError(f"relative flatness is that of a weight matrix, and {name!r} is none of {matrices}")
        part = replace(objective, only=[name])
        before = part.spent()
        curvature = Curvature(part)
        w = part.here()[0]
        matrix = w.reshape(len(w), -1)
        draws: list[float] = []
        for i in range(self.n):
            a, b = _signs(matrix, seed_of(seed, 4, objective.number, i))
            direction = torch.outer(matrix @ a, b).view_as(w)  # E [v' H v] over signs a, b is the weighted trace
            v = part.space.vector([direction])
            draws.append(float(v.dot(curvature.product(v))))
            if len(draws) % BLOCK == 0 or len(draws) == self.n:
                cost = part.spent() - before
                estimate = summarise(torch.tensor(draws, dtype=torch.float64), "unbiased", cost=cost, note=f"of {name}")
                yield estimate
                if len(draws) >= 2 * BLOCK and estimate.stderr <= self.rtol * abs(estimate.value):
                    return


def _signs(matrix: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    both = torch.randint(0, 2, (2, matrix.shape[1]), generator=generator).mul(2).sub(1).to(matrix)
    return both[0], both[1]
