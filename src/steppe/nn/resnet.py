"""ResNets (He et al. 2016), wide ResNets (Zagoruyko & Komodakis 2016) and PyramidNets (Han et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad, relu

from .._util.names import unknown
from .layers import Mean, classifier, convolution, he_, image, sequence, stem_for, units

Module = Callable[[int, int, int], nn.Module]  # from input channels, output channels and stride


def stages(block: Module, inputs: int, width: int, blocks: Sequence[int]) -> tuple[dict[str, nn.Module], int]:
    """Stages of so many blocks, each with twice the channels and half the height and width of the one before.

    The first stage has `width` channels; also returns the channels of the last.
    """
    modules: dict[str, nn.Module] = {}
    for i, number in enumerate(blocks):
        outputs, stride = width * 2**i, 1 if i == 0 else 2
        first = block(inputs, outputs, stride)
        modules[f"stage{i + 1}"] = nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(number - 1)))
        inputs = outputs
    return modules, inputs


# -- ResNet -----------------------------------------------------------------------------------------------------------


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


# -- wide ResNet ------------------------------------------------------------------------------------------------------


class WideBlock(nn.Module):
    """Norm, ReLU and convolution, twice; where the shape changes, the shortcut shares the first norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, outputs, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), convolution(outputs, outputs)
        changes = (inputs, stride) != (outputs, 1)
        self.shortcut = convolution(inputs, outputs, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.norm1(x))
        y: Tensor = self.conv2(relu(self.norm2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(shape: tuple[int, ...], outputs: int, depth: int = 28, width: int = 10) -> nn.Module:
    """WRN-depth-width: three stages of (depth - 4) / 6 blocks with 16, 32 and 64 times `width` channels.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    depth
        The number of layers.
    width
        The factor of the number of channels.

    """
    channels, _, _ = image(shape, f"wrn{depth}-{width}")
    blocks = units(depth, "a wide ResNet", layers=2, others=4)  # three shortcuts and the stem are the other four
    stem = convolution(channels, 16)
    body, last = stages(WideBlock, 16, 16 * width, (blocks,) * 3)
    return he_(sequence(stem=stem, **body, **classifier(last, outputs)))


def preact_resnet18(shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    """Pre-activation ResNet-18 (He et al. 2016b): the blocks of a wide ResNet in the four stages of ResNet-18.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    width
        The number of channels in the first stage.

    """
    channels, _, _ = image(shape, "preact-resnet18")
    body, last = stages(WideBlock, width, width, (2, 2, 2, 2))
    end = classifier(last, outputs)  # before the stem: the order decides the initial weights for a seed
    return he_(sequence(stem=convolution(channels, width), **body, **end))


# -- PyramidNet -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The convolutions of a block."""

    sizes: tuple[int, ...]
    times: tuple[int, ...]  # output channels, in units of the width of the block
    strided: int  # the convolution that has the stride


KINDS = {"basic": Kind((3, 3), (1, 1), strided=0), "bottleneck": Kind((1, 3, 1), (1, 1, 4), strided=1)}


class PyramidBlock(nn.Module):
    """Norms around every convolution and no ReLU before the first (Figure 6d); the shortcut is pooled and padded."""

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
        if self.stride > 1:  # ceil: the size that a padded convolution of that stride gives, at odd sizes too
            x = avg_pool2d(x, self.stride, ceil_mode=True)
        return y + pad(x, (0, 0, 0, 0, 0, self.new_channels))


def pyramid(start: int, alpha: float, blocks: Sequence[int], kind: Kind) -> tuple[dict[str, nn.Module], int]:
    """Stages of so many blocks, whose width grows by `alpha` over all of them, and the channels of the last."""
    widths = (round(start + alpha * k / sum(blocks)) for k in count(1))  # Equation 2, as the released code rounds it
    body: dict[str, nn.Module] = {}
    inputs = start
    for stage, number in enumerate(blocks, start=1):
        modules = []
        for i in range(number):
            modules.append(PyramidBlock(inputs, next(widths), 2 if stage > 1 and i == 0 else 1, kind))
            inputs = modules[-1].outputs
        body[f"stage{stage}"] = nn.Sequential(*modules)
    return body, inputs


def pyramidnet(
    shape: tuple[int, ...], outputs: int, depth: int = 101, alpha: float = 64.0, block: str = "bottleneck"
) -> nn.Module:
    """PyramidNet for CIFAR: three stages of blocks, from 16 channels to 16 + alpha (four times that in bottlenecks).

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    depth
        The number of layers.
    alpha
        The growth of the width over all blocks.
    block
        "basic" or "bottleneck".

    """
    channels, _, _ = image(shape, f"pyramidnet{depth}")
    if block not in KINDS:
        raise ValueError(unknown("kind of block", block, KINDS))
    blocks = units(depth, f"a PyramidNet of {block} blocks", layers=len(KINDS[block].sizes), others=2)
    body, last = pyramid(16, alpha, (blocks,) * 3, KINDS[block])
    stem = sequence(conv=convolution(channels, 16), norm=nn.BatchNorm2d(16))
    return he_(sequence(stem=stem, **body, **classifier(last, outputs)))
