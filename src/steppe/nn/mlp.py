"""A plain network of linear layers and ReLUs."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import nn

from .layers import sequence


def mlp(shape: tuple[int, ...], outputs: int, width: int = 128, depth: int = 6) -> nn.Module:
    """Six layers of 128 ReLUs on rows of any shape, and a linear layer on top (Tahmasebi et al. 2024, Section 4).

    Its weights start as torch draws them, as in the released code. There the second and the third layer are one
    layer applied twice; the paper says six layers, and so it is here.
    """
    widths = [prod(shape), *[width] * depth]
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (before, after) in enumerate(pairwise(widths), start=1):
        layers |= {f"linear{i}": nn.Linear(before, after), f"relu{i}": nn.ReLU()}
    return sequence(**layers, head=nn.Linear(widths[-1], outputs))
