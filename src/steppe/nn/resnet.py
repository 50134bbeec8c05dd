"""ResNets (He et al. 2016)."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from .layers import Mean, Module, convolution, he_, image, sequence, stages, stem_for, units
from .registry import register


class Padded(nn.Module):
    """Subsamples by the stride and appends zero channels: a shortcut without parameters ("option A")."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.channels))


def padded(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option A: the identity, or where the shape changes a subsampled input with zero channels."""
    return nn.Identity() if (inputs, stride) == (outputs, 1) else Padded(outputs - inputs, stride)


def projected(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Option B: the identity, or where the shape changes a 1x1 convolution and a norm."""
    if (inputs, stride) == (outputs, 1):
        return nn.Identity()
    return sequence(conv=convolution(inputs, outputs, 1, stride), norm=nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two 3x3 convolutions with norms, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Module) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _small_stem(channels: int, width: int) -> nn.Module:
    return sequence(conv=convolution(channels, width), norm=nn.BatchNorm2d(width), relu=nn.ReLU())


@register(
    "resnet18",
    "ResNet-18 of any width, 3x3 stem",
    paper="He et al. 2016, with a 3x3 stem",
    published='11,173,962; with `stem="large"` and 1000 classes 11,689,512 (torchvision)',
)
def resnet18(shape: tuple[int, ...], outputs: int, width: int = 64, stem: str = "small") -> nn.Module:
    """ResNet-18 of any width: four stages of two blocks with projected shortcuts.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    width
        The number of channels in the first stage.
    stem
        "small" for a 3x3 convolution, "large" for ImageNet's 7x7 convolution and max-pool.

    """
    channels, _, _ = image(shape, "resnet18")
    first = stem_for(stem, _small_stem(channels, width), channels, width)
    body, last = stages(partial(Block, shortcut=projected), width, width, (2, 2, 2, 2))
    return he_(sequence(stem=first, **body, pool=Mean(2, 3), head=nn.Linear(last, outputs)))


def cifar_resnet(shape: tuple[int, ...], outputs: int, depth: int = 32, width: int = 16) -> nn.Module:
    """ResNet of 6 n + 2 layers for CIFAR (He et al. 2016, section 4.2): three stages of n blocks, padded shortcuts.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    depth
        The number of layers.
    width
        The number of channels in the first stage.

    """
    channels, _, _ = image(shape, f"resnet{depth}")
    blocks = units(depth, "a CIFAR ResNet", layers=2, others=2)
    stem = _small_stem(channels, width)
    body, last = stages(partial(Block, shortcut=padded), width, width, (blocks,) * 3)
    return he_(sequence(stem=stem, **body, pool=Mean(2, 3), head=nn.Linear(last, outputs)))


for _depth, _published in ((20, "0.27 M (Table 6)"), (32, "0.46 M"), (44, "0.66 M"), (56, "0.85 M"), (110, "1.7 M")):
    register(
        f"resnet{_depth}",
        f"ResNet-{_depth} for CIFAR, thin, padded shortcuts",
        fixed={"depth": _depth},
        paper="He et al. 2016, Section 4.2",
        published=_published,
    )(cifar_resnet)
