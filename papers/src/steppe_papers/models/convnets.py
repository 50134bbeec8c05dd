"""Convolutional networks beside ResNets: VGG-19, DenseNet-121 and EfficientNets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import ceil

import torch
from torch import Tensor, nn

from steppe.nn import register
from steppe.nn.layers import Mean, classifier, convolution, he_, image, sequence, stem_for

# -- VGG --------------------------------------------------------------------------------------------------------------

CONVOLUTIONS = (2, 2, 4, 4, 4)  # Table 1, column E: 3x3 convolutions before each max-pool
WIDTHS = (1, 2, 4, 8, 8)  # their channels, in units of the first


@register(
    "vgg19",
    "VGG-19 with batch norms and one linear layer",
    paper="Simonyan & Zisserman 2015, column E",
    published="143,678,248 with its three large linear layers (torchvision, vgg19_bn)",
)
def vgg19(shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    """VGG-19 (Simonyan & Zisserman 2015, configuration E) with batch norms and one linear layer, as usual on CIFAR.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    width
        The channels of the first stage.

    """
    inputs, _, _ = image(shape, "vgg19", at_least=2 ** len(CONVOLUTIONS))
    layers: dict[str, nn.Module] = {}
    for stage, (convolutions, times) in enumerate(zip(CONVOLUTIONS, WIDTHS, strict=True), start=1):
        for i in range(1, convolutions + 1):
            # with a bias although a norm follows, as in the released models and in the published count
            layers[f"conv{stage}_{i}"] = nn.Conv2d(inputs, times * width, 3, padding=1)
            layers[f"norm{stage}_{i}"] = nn.BatchNorm2d(times * width)
            layers[f"relu{stage}_{i}"] = nn.ReLU()
            inputs = times * width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    return he_(sequence(**layers, mean=Mean(2, 3), head=nn.Linear(inputs, outputs)))


# -- DenseNet ---------------------------------------------------------------------------------------------------------


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
    conv, pool = convolution(inputs, inputs // 2, 1), nn.AvgPool2d(2)
    return sequence(norm=nn.BatchNorm2d(inputs), relu=nn.ReLU(), conv=conv, pool=pool)


@register(
    "densenet121",
    "DenseNet-121, 3x3 stem",
    paper="Huang et al. 2017, with a 3x3 stem",
    published='with `stem="large"` and 1000 classes 7,978,856 (torchvision)',
)
def densenet121(
    shape: tuple[int, ...],
    outputs: int,
    growth: int = 32,
    blocks: Sequence[int] = (6, 12, 24, 16),  # Table 1
    stem: str = "small",
) -> nn.Module:
    """DenseNet-BC with the blocks of DenseNet-121 (Huang et al. 2017).

    A layer takes the outputs of all earlier layers of its block.

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
    for i, number in enumerate(blocks, start=1):
        layers[f"block{i}"] = nn.Sequential(*(DenseLayer(inputs + j * growth, growth) for j in range(number)))
        inputs += number * growth
        if i < len(blocks):
            layers[f"transition{i}"] = transition(inputs)
            inputs //= 2
    return he_(sequence(**layers, **classifier(inputs, outputs)))


# -- EfficientNet -----------------------------------------------------------------------------------------------------

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
    """EfficientNet-B0 (Tan & Le 2019) with scaled width and depth: inverted residuals with squeeze-and-excitation.

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
    inputs = scaled(width * STEM)
    stem = sequence(conv=convolution(channels, inputs, 3, 2), norm=nn.BatchNorm2d(inputs), silu=nn.SiLU())
    blocks, total = count(), sum(ceil(depth * number) for *_, number in STAGES)
    body: dict[str, nn.Module] = {}
    for i, (expansion, size, stride, base, number) in enumerate(STAGES, start=1):
        stage = nn.Sequential()
        for stride_here in (stride, *[1] * (ceil(depth * number) - 1)):
            drop, channels = drop_path * next(blocks) / total, scaled(width * base)
            stage.append(InvertedResidual(inputs, channels, expansion, size, stride_here, drop))
            inputs = channels
        body[f"stage{i}"] = stage
    last = HEAD * inputs
    end = {"conv": convolution(inputs, last, 1), "norm": nn.BatchNorm2d(last), "silu": nn.SiLU(), "pool": Mean(2, 3)}
    return he_(sequence(stem=stem, **body, **end, dropout=nn.Dropout(dropout), head=nn.Linear(last, outputs)))


for _name, _width, _depth, _dropout, _count in (  # the table in the authors' code
    ("B3", 1.2, 1.4, 0.3, "12,233,232"),
    ("B4", 1.4, 1.8, 0.4, "19,341,616"),
):
    register(
        f"efficientnet-{_name.lower()}",
        f"EfficientNet-{_name}: squeeze-and-excitation, dropout, stochastic depth",
        defaults={"width": _width, "depth": _depth, "dropout": _dropout},
        paper="Tan & Le 2019",
        published=f"with 1000 classes {_count} (torchvision)",
    )(efficientnet)
