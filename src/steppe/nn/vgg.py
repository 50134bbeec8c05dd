"""VGG-19 (Simonyan & Zisserman 2015, configuration E) with batch norms and one linear layer, as usual on CIFAR."""

from __future__ import annotations

from torch import nn

from .layers import Mean, he_, image, sequence

CONVOLUTIONS = (2, 2, 4, 4, 4)  # Table 1, column E: 3x3 convolutions before each max-pool
WIDTHS = (1, 2, 4, 8, 8)  # their channels, in units of the first


def vgg19(shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    """Sixteen 3x3 convolutions with norms, a max-pool after each stage, global average pooling, and a linear layer.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    width
        The channels of the first stage.

    """
    inputs, _, _ = image(shape, "vgg19", at_least=2 ** len(CONVOLUTIONS))
    layers: dict[str, nn.Module] = {}
    for stage, (count, times) in enumerate(zip(CONVOLUTIONS, WIDTHS, strict=True), start=1):
        for i in range(1, count + 1):
            # with a bias although a norm follows, as in the released models and in the published count
            layers[f"conv{stage}_{i}"] = nn.Conv2d(inputs, times * width, 3, padding=1)
            layers[f"norm{stage}_{i}"] = nn.BatchNorm2d(times * width)
            layers[f"relu{stage}_{i}"] = nn.ReLU()
            inputs = times * width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    return he_(sequence(**layers, mean=Mean(2, 3), head=nn.Linear(inputs, outputs)))
