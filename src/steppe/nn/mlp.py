"""Networks on rows of any shape: multilayer perceptrons and diagonal linear networks."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from .layers import sequence


def mlp(shape: tuple[int, ...], outputs: int, width: int = 128, depth: int = 6) -> nn.Module:
    """Layers of ReLUs and a linear layer (Tahmasebi et al. 2024, Section 4).

    The initial weights are torch's defaults, as in the released code. That code applies one layer twice, as the second
    and the third; the paper has six different layers, and so has this model.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    width, depth
        The units per layer and the number of layers.

    """
    widths = [prod(shape), *[width] * depth]
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (before, after) in enumerate(pairwise(widths), start=1):
        layers |= {f"linear{i}": nn.Linear(before, after), f"relu{i}": nn.ReLU()}
    return sequence(**layers, head=nn.Linear(widths[-1], outputs))


class DiagonalLinear(nn.Module):
    """<x, u * v> for weights u and v, one pair per output (Andriushchenko et al. 2023, Section 5.2)."""

    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.u = nn.Parameter(scale * torch.randn(outputs, inputs))
        self.v = nn.Parameter(scale * torch.randn(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.u * self.v).T


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
