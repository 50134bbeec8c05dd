"""What is grey, and how colours get brighter or more colourful, for one channel or three."""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow, OpenCV and JPEG have it


def grey(images: Tensor) -> Tensor:
    """How bright each pixel looks, as one channel; one channel is grey already."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).unsqueeze(1)


def tinted(colour: tuple[float, float, float], channels: int) -> Tensor:
    """A colour (red, green, blue), or how bright it looks where there is one channel; shaped to multiply images."""
    whole = torch.tensor(colour).view(1, 3, 1, 1)
    return whole if channels == 3 else grey(whole)


def brighter(images: Tensor, amount: float) -> Tensor:
    """HSV's value raised by an amount, clipped to 0 and 1, with hue and saturation kept.

    Red, green and blue are value * (1 - saturation * k) with k between 0 and 1 from the hue, so all three scale with
    the value; black, which has no hue, becomes grey.
    """
    value = images.amax(1, keepdim=True)
    raised = (value + amount).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-12)), raised)


def saturated(images: Tensor, factor: float, amount: float) -> Tensor:
    """HSV's saturation times a factor and plus an amount, clipped to 0 and 1, with hue and value kept.

    Greys have no hue; HSV calls it red, and so do Hendrycks & Dietterich (2019): an amount above 0 reddens greys.
    One channel has no saturation and stays as it is.
    """
    if images.shape[1] == 1:
        return images
    value, least = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    saturation = (value - least) / value.clamp(min=1e-12)
    wanted = (saturation * factor + amount).clamp(0, 1)
    below = torch.where(saturation > 0, (value - images) / saturation.clamp(min=1e-12), value * tinted((0, 1, 1), 3))
    return value - below * wanted
