"""Densely connected networks (Huang et al. 2017): a layer takes the outputs of all earlier layers of its block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .layers import Mean, convolution, he_, image, sequence, stem_for


class DenseLayer(nn.Module):
    """A 1x1 convolution to 4 * growth channels and a 3x3 one to `growth`, appended to the input (DenseNet-B)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, 4 * growth, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), convolution(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x).relu())
        return torch.cat([x, self.conv2(self.norm2(y).relu())], dim=1)


def transition(inputs: int) -> nn.Module:
    """The layer between blocks: halves the channels (compression 0.5, DenseNet-C), the height and the width."""
    return sequence(
        norm=nn.BatchNorm2d(inputs),
        relu=nn.ReLU(),
        conv=convolution(inputs, inputs // 2, 1),
        pool=nn.AvgPool2d(2),
    )


def densenet121(
    shape: tuple[int, ...],
    outputs: int,
    growth: int = 32,
    blocks: Sequence[int] = (6, 12, 24, 16),  # Table 1
    stem: str = "small",
) -> nn.Module:
    """DenseNet-BC with the blocks of DenseNet-121.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    growth
        The channels that a layer appends.
    blocks
        The layers of each block.
    stem
        "small" for a 3x3 convolution, "large" for ImageNet's 7x7 convolution and max-pool.

    """
    # every transition halves the size, and the stem for large images halves it twice, rounding up
    smallest = 2 ** (len(blocks) - 1)
    channels, _, _ = image(shape, "densenet121", at_least=4 * smallest - 3 if stem == "large" else smallest)
    inputs = 2 * growth
    layers = {"stem": stem_for(stem, convolution(channels, inputs), channels, inputs)}
    for i, count in enumerate(blocks, start=1):
        layers[f"block{i}"] = nn.Sequential(*(DenseLayer(inputs + j * growth, growth) for j in range(count)))
        inputs += count * growth
        if i < len(blocks):
            layers[f"transition{i}"] = transition(inputs)
            inputs //= 2
    layers |= {"norm": nn.BatchNorm2d(inputs), "relu": nn.ReLU(), "pool": Mean(2, 3)}
    return he_(sequence(**layers, head=nn.Linear(inputs, outputs)))
