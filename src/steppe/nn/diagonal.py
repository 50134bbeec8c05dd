"""Diagonal linear networks: linear predictors written as a product, the simplest networks with a landscape."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn


class DiagonalLinear(nn.Module):
    """<x, u * v> for weights u and v, a pair for each output (Andriushchenko et al. 2023, Section 5.2)."""

    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.u = nn.Parameter(scale * torch.randn(outputs, inputs))
        self.v = nn.Parameter(scale * torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.u * self.v).T


def diagonal(shape: tuple[int, ...], outputs: int, scale: float = 0.1) -> nn.Module:
    """A diagonal linear network on rows of any shape, with first weights from N(0, scale^2).

    The paper varies random first weights without giving their scale: the smaller, the sparser the solution
    that gradient descent finds (Woodworth et al. 2020).
    """
    return DiagonalLinear(prod(shape), outputs, scale)
