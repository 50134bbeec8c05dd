"""Wide (Zagoruyko & Komodakis 2016) and pre-activation ResNets (He et al. 2016b), PyramidNets (Han et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad, relu

from steppe.extend import unknown
from steppe.nn import register
from steppe.nn.layers import classifier, convolution, he_, image, sequence, stages, units

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


@register(
    "preact-resnet18",
    "pre-activation ResNet-18 of any width, 3x3 stem",
    paper="He et al. 2016b, with a 3x3 stem",
    published="none; counted by hand",
)
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


for _depth, _width, _published in ((28, 10, "36.5 M; 36,479,194 (imgclsmob)"), (40, 2, "2.2 M")):
    register(
        f"wrn{_depth}-{_width}",
        f"wide ResNet of {_depth} layers, {_width} times as wide",
        fixed={"depth": _depth, "width": _width},
        paper="Zagoruyko & Komodakis 2016",
        published=_published,
    )(wide_resnet)
for _depth, _block, _alpha, _published in (
    (101, "bottleneck", 64.0, "none at this alpha"),  # alpha: the code that Agnostic-SAM's authors build on
    # Han et al. 2017, Table 4, which also has 84 and 270
    (110, "basic", 48.0, "1,772,706 (imgclsmob); alpha = 84: 3,904,446; alpha = 270: 28,485,477"),
    (272, "bottleneck", 200.0, "26,210,842 (imgclsmob)"),  # Foret et al. 2021, who add ShakeDrop to it
):
    register(
        f"pyramidnet{_depth}",
        f"PyramidNet of {_depth} layers in {_block} blocks",
        fixed={"depth": _depth, "block": _block},
        defaults={"alpha": _alpha},
        paper=f"Han et al. 2017, alpha = {_alpha:g}",
        published=_published,
    )(pyramidnet)
