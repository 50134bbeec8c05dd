"""Blurs. Images are floats; the caller clips them to 0 .. 1."""

from __future__ import annotations

from math import ceil

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from .noise import Draws


def gaussian_blur(images: Tensor, _: Draws, sigma: float) -> Tensor:
    """Convolve with a Gaussian; repeat border pixels outwards."""
    return smoothed(images, sigma, mode="nearest")


def defocus_blur(images: Tensor, _: Draws, radius: float, softness: float) -> Tensor:
    """Convolve with a disc whose edge is softened by a Gaussian of three pixels; reflect borders."""
    reach = int(radius)
    line = np.arange(-reach, reach + 1)
    disc = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    beside = np.exp(-0.5 / softness**2)
    edge = np.array([beside, 1, beside]) / (1 + 2 * beside)
    soft = np.zeros((disc.shape[0] + 2,) * 2)
    for i, a in enumerate(edge):
        for j, b in enumerate(edge):
            soft[i : i + len(disc), j : j + len(disc)] += a * b * disc / disc.sum()
    kernel = torch.from_numpy(soft).float()[None, None]
    wide = pad(images, [reach + 1] * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
    return conv2d(wide, kernel).view_as(images)


def glass_blur(images: Tensor, draws: Draws, sigma: float, rounds: float, reach: float = 1) -> Tensor:
    """Blur, replace each pixel by itself or by a neighbour, at random, and blur again.

    The authors' script intends to exchange the two pixels but, because arrays alias, copies one over the other; this
    code does the same, as the published images do. It goes from the last pixel to the first, and a neighbour is up to
    `reach` pixels back or `reach` - 1 pixels ahead, where pixels are replaced already. Pixels near the border stay.
    """
    images, far = smoothed(images, sigma, mode="nearest"), int(reach)
    height, width = images.shape[-2:]
    for turn in range(int(rounds)):
        back = draws.whole(f"moves {turn}", 2, height, width, low=1 - far, high=far + 1)
        places = _sources(back, far).unsqueeze(1).expand(-1, images.shape[1], -1)
        images = images.flatten(2).gather(2, places).view_as(images)
    return smoothed(images, sigma, mode="nearest")


def _sources(back: Tensor, far: int) -> Tensor:
    """Return for each pixel the number of the pixel whose value it ends with, (rows, pixels)."""
    height, width = back.shape[-2:]
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[far + 1 : height - far + 1, far + 1 : width - far + 1] = True
    back = back * inside
    neighbours = (torch.arange(height).unsqueeze(1) - back[:, 0]) * width + torch.arange(width) - back[:, 1]
    if far == 1:  # no neighbour has been replaced before
        return neighbours.flatten(1)
    steps = neighbours.flatten(1).T.numpy()
    sources = np.repeat(np.arange(height * width)[:, None], len(back), axis=1)
    every = np.arange(len(back))
    for pixel in inside.flatten().nonzero().flatten().flip(0).tolist():
        sources[pixel] = sources[steps[pixel], every]
    return torch.from_numpy(sources.T)


def motion_blur(images: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """Streak each image in a random direction within 45 degrees of the horizontal."""
    return streaked(images, radius, sigma, draws.uniform("angle", low=-45, high=45))


def zoom_blur(images: Tensor, _: Draws, percent: float) -> Tensor:
    """Average the image (counted twice) and its enlargements, percent by percent."""
    zooms = [enlarged(images, 1 + k / 100) for k in range(int(percent) + 1)]
    return torch.stack([images, *zooms]).mean(0)


def smoothed(images: Tensor, sigma: float, mode: str, truncate: float = 4.0) -> Tensor:
    """Convolve with a Gaussian along the last two dimensions."""
    from scipy.ndimage import gaussian_filter

    whole = images.numpy()
    return torch.from_numpy(gaussian_filter(whole, sigma, mode=mode, truncate=truncate, axes=(-2, -1)))


def streaked(images: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """Convolve with half a Gaussian from each pixel in one direction, in whole pixels, as ImageMagick does.

    Border pixels repeat outwards.
    """
    length = 2 * int(radius)
    weights = torch.exp(-0.5 * (torch.arange(length + 1) / sigma) ** 2)
    weights = weights / weights.sum()
    down, right = torch.sin(torch.deg2rad(degrees)), torch.cos(torch.deg2rad(degrees))
    height, width = images.shape[-2:]
    windows = pad(images, [length] * 4, mode="replicate").unfold(2, height, 1).unfold(3, width, 1)
    every = torch.arange(len(images))
    out = torch.zeros_like(images)
    for i, weight in enumerate(weights):
        dy, dx = (torch.ceil(i * way - 0.5).long() for way in (down, right))
        out += weight * windows[every, :, length + dy, length + dx]
    return out


def enlarged(images: Tensor, zoom: float) -> Tensor:
    """Enlarge the centre of the image to the image's size: bilinear, with aligned corners."""
    size = images.shape[-2:]
    part = [ceil(n / zoom) for n in size]
    cut = _middle(images, part)
    return _middle(interpolate(cut, [round(n * zoom) for n in part], mode="bilinear", align_corners=True), list(size))


def _middle(images: Tensor, size: list[int]) -> Tensor:
    top, left = ((n - m) // 2 for n, m in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]
