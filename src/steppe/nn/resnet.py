"""Residual networks: ResNet-18, and the thin deep ones for CIFAR (He et al. 2016, "Deep residual learning")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from .layers import Mean, convolution, he_, image, sequence, stem_for, units

Shortcut = Callable[[int, int, int], nn.Module]
"""from channels in, channels out and stride to what carries the input around a block"""


class Padded(nn.Module):
    """Every so manieth pixel, with zeros as the new channels: a shortcut without parameters ("option A")."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels))


def padded(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option A: the input itself, subsampled and padded with zero channels where the shape changes."""
    return nn.Identity() if (inputs, stride) == (outputs, 1) else Padded(outputs - inputs, stride)


def projected(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option B: the input itself, but a 1x1 convolution and a norm where the shape changes."""
    if (inputs, stride) == (outputs, 1):
        return nn.Identity()
    return sequence(conv=convolution(inputs, outputs, 1, stride), norm=nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two 3x3 convolutions with norms, and the input carried around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def stages(width: int, blocks: Sequence[int], shortcut: Shortcut) -> dict[str, nn.Module]:
    """Stages of so many blocks, each with twice the channels and half the height and width of the one before."""
    made: dict[str, nn.Module] = {}
    inputs = width
    for i, count in enumerate(blocks):
        outputs, stride = width * 2**i, 1 if i == 0 else 2
        first = Block(inputs, outputs, stride, shortcut)
        made[f"stage{i + 1}"] = nn.Sequential(first, *(Block(outputs, outputs, 1, shortcut) for _ in range(count - 1)))
        inputs = outputs
    return made


def _small_stem(channels: int, width: int) -> nn.Module:
    return sequence(conv=convolution(channels, width), norm=nn.BatchNorm2d(width), relu=nn.ReLU())


def resnet18(shape: tuple[int, ...], outputs: int, width: int = 64, stem: str = "small") -> nn.Module:
    """ResNet-18 of any width: four stages of two blocks, projected shortcuts, a 3x3 stem unless images are large."""
    channels, _, _ = image(shape, "resnet18")
    return he_(
        sequence(
            stem=stem_for(stem, _small_stem(channels, width), channels, width),
            **stages(width, (2, 2, 2, 2), projected),
            pool=Mean(2, 3),
            head=nn.Linear(8 * width, outputs),
        )
    )


def cifar_resnet(shape: tuple[int, ...], outputs: int, depth: int = 32, width: int = 16) -> nn.Module:
    """ResNet of 6 n + 2 layers for CIFAR (Section 4.2): three stages of n blocks, padded shortcuts."""
    channels, _, _ = image(shape, f"resnet{depth}")
    blocks = units(depth, "a CIFAR ResNet", layers=2, others=2)
    return he_(
        sequence(
            stem=_small_stem(channels, width),
            **stages(width, (blocks,) * 3, padded),
            pool=Mean(2, 3),
            head=nn.Linear(4 * width, outputs),
        )
    )
