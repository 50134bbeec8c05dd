"""EfficientNets (Tan & Le 2019): inverted residual blocks with squeeze-and-excitation, scaled in width and depth."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn

from .layers import Mean, convolution, he_, image, sequence

# Table 1, stages 2 to 8: factor of expansion, side of the kernel, stride, channels, blocks
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STEM, HEAD = 32, 4  # channels of the stem; those of the head, in units of the last stage
DIVISOR = 8  # of the number of channels


def scaled(channels: float) -> int:
    """The nearest multiple of 8, and the next one where that is below 90 %, as in the authors' code."""
    nearest = max(DIVISOR, int(channels + DIVISOR / 2) // DIVISOR * DIVISOR)
    return nearest if nearest >= 0.9 * channels else nearest + DIVISOR


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate between 0 and 1, a two-layer network of the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.silu = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.expand(self.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * gate.sigmoid()


class StochasticDepth(nn.Module):
    """In training, drops the whole branch for a random share of the rows (Huang et al. 2016)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.probability:
            return x
        keep = 1 - self.probability
        return x * torch.empty(len(x), 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(keep).div_(keep)


class InvertedResidual(nn.Module):
    """MBConv: a 1x1 expansion, a depthwise convolution, squeeze-and-excitation, and a linear 1x1 projection."""

    def __init__(self, inputs: int, outputs: int, expansion: int, size: int, stride: int, drop: float) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: dict[str, nn.Module] = {}
        if expansion > 1:
            layers |= {"conv1": convolution(inputs, hidden, 1), "norm1": nn.BatchNorm2d(hidden), "silu1": nn.SiLU()}
        depthwise = nn.Conv2d(hidden, hidden, size, stride, size // 2, groups=hidden, bias=False)
        layers |= {"conv2": depthwise, "norm2": nn.BatchNorm2d(hidden), "silu2": nn.SiLU()}
        layers["excitation"] = SqueezeExcitation(hidden, max(1, inputs // 4))
        layers |= {"conv3": convolution(hidden, outputs, 1), "norm3": nn.BatchNorm2d(outputs)}
        self.branch = sequence(**layers)
        self.drop = StochasticDepth(drop) if (inputs, stride) == (outputs, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return y if self.drop is None else x + self.drop(y)


def efficientnet(
    shape: tuple[int, ...],
    outputs: int,
    width: float = 1.0,
    depth: float = 1.0,
    dropout: float = 0.2,
    drop_path: float = 0.2,  # Section 5.2: survival probability 0.8
) -> nn.Module:
    """EfficientNet-B0 with scaled width and depth.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    width, depth
        The factors of the number of channels and of the number of blocks.
    dropout
        The probability of dropout before the linear layer.
    drop_path
        The probability of dropping a block in the last block; it grows linearly from 0 in the first.

    """
    channels, _, _ = image(shape, "efficientnet")
    counts = [ceil(depth * blocks) for *_, blocks in STAGES]
    inputs = scaled(width * STEM)
    layers: dict[str, nn.Module] = {
        "stem": sequence(conv=convolution(channels, inputs, 3, 2), norm=nn.BatchNorm2d(inputs), silu=nn.SiLU())
    }
    before = 0
    for number, (count, (expansion, size, stride, base, _)) in enumerate(zip(counts, STAGES, strict=True), start=1):
        stage = []
        for i in range(count):
            drop = drop_path * (before + i) / sum(counts)
            stage.append(InvertedResidual(inputs, scaled(width * base), expansion, size, 1 if i else stride, drop))
            inputs = scaled(width * base)
        layers[f"stage{number}"] = nn.Sequential(*stage)
        before += count
    last = HEAD * inputs
    layers |= {
        "conv": convolution(inputs, last, 1),
        "norm": nn.BatchNorm2d(last),
        "silu": nn.SiLU(),
        "pool": Mean(2, 3),
    }
    return he_(sequence(**layers, dropout=nn.Dropout(dropout), head=nn.Linear(last, outputs)))
