"""Layers, stems, initialisation and shape checks that several networks share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .._util.names import unknown

Module = Callable[[int, int, int], nn.Module]  # from input channels, output channels and stride
SMALL_IMAGES = "mlp, resnet18, resnet32 and simple-vit take images as small as 8 x 8"


def sequence(**layers: nn.Module) -> nn.Sequential:
    """An `nn.Sequential` with named layers."""
    return nn.Sequential(OrderedDict(layers))


class Mean(nn.Module):
    """The mean over some dimensions: global average pooling of a feature map or of tokens."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dimensions)


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, to be followed by a norm; padded so that only the stride changes height and width."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


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


def classifier(channels: int, outputs: int) -> dict[str, nn.Module]:
    """The layers behind pre-activation blocks: norm, ReLU, global average pooling and a linear layer."""
    return {
        "norm": nn.BatchNorm2d(channels), "relu": nn.ReLU(), "pool": Mean(2, 3), "head": nn.Linear(channels, outputs)
    }  # fmt: skip


def stem_for(images: str, small: nn.Module, channels: int, width: int) -> nn.Module:
    """The stem for small images (CIFAR), `small` itself, or for large ones (ImageNet).

    The latter is a 7x7 convolution and a max-pool, which reduce the number of pixels to a sixteenth (He et al. 2016,
    Table 1).
    """
    if images == "small":
        return small
    if images != "large":
        raise ValueError(unknown("stem", images, ("small", "large")))
    return sequence(
        conv=convolution(channels, width, size=7, stride=2),
        norm=nn.BatchNorm2d(width),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
    )


def he_(model: nn.Module) -> nn.Module:
    """Initialises convolutions as He et al. 2015, from N(0, 2 / fan-out), and biases to zero.

    The fan-out of a convolution in groups is that of one group.

    Norms keep torch's initial identity and the classifier torch's uniform weights, as in the released code of most of
    these networks.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.groups > 1:  # torch counts the outputs of all groups
                with torch.no_grad():
                    module.weight.mul_(module.groups**0.5)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


def image(shape: tuple[int, ...], model: str, at_least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of a row; raises if the row is not an image, or too small for the model."""
    if len(shape) != 3:
        raise ValueError(
            f"{model} works on images (channels, height, width), but a row of this data has the shape {shape}. "
            "Use mlp, which takes rows of any shape, or provide the data as images."
        )
    channels, height, width = shape
    if min(height, width) < at_least:
        raise ValueError(
            f"{model} needs images of at least {at_least} x {at_least} pixels, but these are {height} x {width}. "
            f"Enlarge them, or use another model: {SMALL_IMAGES}."
        )
    return channels, height, width


def units(depth: int, model: str, layers: int, others: int) -> int:
    """Blocks per stage in a network of this depth: three equal stages of blocks of `layers` layers, and `others`."""
    blocks, remainder = divmod(depth - others, 3 * layers)
    if remainder or blocks < 1:
        valid = ", ".join(str(3 * layers * n + others) for n in (1, 2, 3))
        raise ValueError(
            f"{model} has three equal stages of blocks of {layers} layers, and {others} other layers: a depth of "
            f"{depth} does not divide into them. Use one of {valid}, ..."
        )
    return blocks
