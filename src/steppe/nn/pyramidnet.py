"""Pyramidal residual networks (Han et al. 2017): every block is a little wider than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from .._util.names import unknown
from .layers import Mean, convolution, he_, image, sequence, units


@dataclass(frozen=True)
class Kind:
    """The convolutions of a block: their sizes, how many times its width each gives, and which of them strides."""

    sizes: tuple[int, ...]
    times: tuple[int, ...]
    strided: int


KINDS = {"basic": Kind((3, 3), (1, 1), strided=0), "bottleneck": Kind((1, 3, 1), (1, 1, 4), strided=1)}


class PyramidBlock(nn.Module):
    """Norms around every convolution and no ReLU before the first (Figure 6d); the shortcut is averaged and padded."""

    def __init__(self, inputs: int, width: int, stride: int, kind: Kind) -> None:
        super().__init__()
        widths = [inputs, *(times * width for times in kind.times)]
        layers: dict[str, nn.Module] = {"norm1": nn.BatchNorm2d(inputs)}
        for i, (size, (before, after)) in enumerate(zip(kind.sizes, pairwise(widths), strict=True)):
            if i > 0:
                layers[f"relu{i + 1}"] = nn.ReLU()
            layers[f"conv{i + 1}"] = convolution(before, after, size, stride if i == kind.strided else 1)
            layers[f"norm{i + 2}"] = nn.BatchNorm2d(after)
        self.branch = sequence(**layers)
        self.stride, self.outputs, self.new_channels = stride, widths[-1], widths[-1] - inputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        if self.stride > 1:  # ceil: as many pixels as a padded convolution of that stride leaves, at odd sizes too
            x = avg_pool2d(x, self.stride, ceil_mode=True)
        return y + pad(x, (0, 0, 0, 0, 0, self.new_channels))


def pyramid(start: int, alpha: float, blocks: Sequence[int], kind: Kind) -> tuple[dict[str, nn.Module], int]:
    """Stages of so many blocks, whose width grows by `alpha` over all of them, and the channels at the end."""
    widths = (round(start + alpha * k / sum(blocks)) for k in count(1))  # Equation 2, as the released code rounds it
    stages: dict[str, nn.Module] = {}
    inputs = start
    for stage, blocks_here in enumerate(blocks, start=1):
        row = []
        for i in range(blocks_here):
            row.append(PyramidBlock(inputs, next(widths), 2 if stage > 1 and i == 0 else 1, kind))
            inputs = row[-1].outputs
        stages[f"stage{stage}"] = nn.Sequential(*row)
    return stages, inputs


def pyramidnet(
    shape: tuple[int, ...], outputs: int, depth: int = 101, alpha: float = 64.0, block: str = "bottleneck"
) -> nn.Module:
    """PyramidNet for CIFAR: three stages of blocks, from 16 channels to 16 + alpha (four times that in bottlenecks)."""
    channels, _, _ = image(shape, f"pyramidnet{depth}")
    if block not in KINDS:
        raise ValueError(unknown("kind of block", block, KINDS))
    blocks = units(depth, f"a PyramidNet of {block} blocks", layers=len(KINDS[block].sizes), others=2)
    stages, last = pyramid(16, alpha, (blocks,) * 3, KINDS[block])
    return he_(
        sequence(
            stem=sequence(conv=convolution(channels, 16), norm=nn.BatchNorm2d(16)),
            **stages,
            norm=nn.BatchNorm2d(last),
            relu=nn.ReLU(),
            pool=Mean(2, 3),
            head=nn.Linear(last, outputs),
        )
    )
