"""Diagonal linear networks (Andriushchenko et al. 2023, Section 5.2)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from steppe.nn import register


class DiagonalLinear(nn.Module):
    """<x, u * v> for weights u and v, one pair per output (Andriushchenko et al. 2023, Section 5.2)."""

    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.u = nn.Parameter(scale * torch.randn(outputs, inputs))
        self.v = nn.Parameter(scale * torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.u * self.v).T


@register(
    "diagonal",
    "diagonal linear network <x, u * v>",
    paper="Andriushchenko et al. 2023, Section 5.2",
    published="2 d for one target",
)
def diagonal(shape: tuple[int, ...], outputs: int, scale: float = 0.1) -> nn.Module:
    """A diagonal linear network.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    scale
        The standard deviation of the initial weights, which the paper does not give. The smaller it is, the sparser is
        the solution of gradient descent (Woodworth et al. 2020).

    """
    return DiagonalLinear(prod(shape), outputs, scale)
