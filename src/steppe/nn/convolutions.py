"""What the convolutional networks share: a convolution before a norm, the stem for large images, the first weights."""

from __future__ import annotations

from torch import nn

from .._util.names import unknown
from .sequence import sequence


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution padded so that stride alone changes height and width; a norm beside it does for a bias."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def stem_for(images: str, small: nn.Module, channels: int, width: int) -> nn.Module:
    """The first layers by the size of images: those given for "small" (CIFAR), or for "large" (ImageNet) a 7x7
    convolution and a max-pool, which leave a sixteenth of the pixels (He et al. 2016, Table 1).
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
    """Draws convolutions as He et al. 2015, from N(0, 2 / fan-out); norms start as the identity, biases at zero.

    The classifier keeps torch's uniform weights, as in the released code of most of these networks.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
