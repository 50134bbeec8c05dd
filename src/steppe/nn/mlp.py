"""Multilayer perceptrons, on rows of any shape."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import nn

from .layers import sequence
from .registry import register


@register(
    "mlp",
    "six layers of 128 ReLUs, on rows of any shape",
    paper="Tahmasebi et al. 2024, Section 4",
    published="none; 184,330 on MNIST",
)
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
