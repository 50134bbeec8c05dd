"""The diagonal of an operator from random signs (Bekas et al. 2007)."""

from __future__ import annotations

from math import isfinite, sqrt

import torch

from ...core.draw import Draw
from ...core.vector import Vector
from ..estimate import NotFinite
from .lanczos import Operator


def diagonal(operator: Operator, n: int = 100, seed: int = 0) -> tuple[Vector, Vector]:
    """An unbiased estimate of every diagonal entry and its standard error, from n products."""
    if n < 2:
        raise ValueError(f"a standard error needs at least two probes, not n = {n}")
    space = operator.space
    total, squares = space.zeros(), space.zeros()
    for i in range(n):
        z = Draw(space, (seed, 3, i), space.weights(), space.zeros()).signs()
        entries = operator.product(z).mul_(z)
        total.add_(entries)
        squares.add_(entries * entries)
    if not isfinite(float(squares.norm())):
        raise NotFinite("a product with the operator is infinite or not a number: it has no diagonal")
    mean = total * (1 / n)
    variance = (squares * (1 / n)).add_(mean * mean, -1.0)
    return mean, variance.map(lambda x: torch.sqrt(x.clamp(min=0)) / sqrt(n - 1))
