"""Small pieces that let a network be written as a list of named layers."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn


def sequence(**layers: nn.Module) -> nn.Sequential:
    """Layers applied in the order written, each under its name."""
    return nn.Sequential(OrderedDict(layers))


class Mean(nn.Module):
    """The mean over some dimensions: of a feature map over its pixels, of tokens over their places."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dimensions)
