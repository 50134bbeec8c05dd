"""Snow, frost, fog and light. Images are float, 0 to 1; what leaves that range is clipped afterwards."""

from __future__ import annotations

import torch
from torch import Tensor

from ..colours import brighter, grey, tinted
from .blur import enlarged, smoothed, streaked
from .draws import Draws

ICE = (0.78, 0.88, 1.0)  # the tint of frost: a pale blue


def snow(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    size: float,
    least: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Tensor:
    """A whitened image with streaks of flakes that fall in one direction, and in the opposite one."""
    flakes = enlarged(mean + deviation * draws.normal("flakes", 1, *images.shape[-2:]), size)
    flakes = flakes.masked_fill(flakes < least, 0.0).clamp(0, 1)
    streaks = streaked(flakes, radius, sigma, draws.uniform("angle", low=-135, high=-45))
    whitened = torch.maximum(images, 1.5 * grey(images) + 0.5)
    return kept * images + (1 - kept) * whitened + streaks + streaks.flip(2, 3)


def frost(images: Tensor, draws: Draws, kept: float, weight: float) -> Tensor:
    """The image behind frost. A stand-in: the authors lay photographs of frost over the image, which are not ours.

    Here frost is made of ridges of smooth noise at three sizes, like the veins of ice on a pane.
    """
    height, width = images.shape[-2:]
    ice = torch.zeros(len(images), 1, height, width)
    for i, sigma in enumerate((4.0, 2.0, 1.0)):
        field = smoothed(draws.normal(f"ice {i}", 1, height, width), sigma, mode="wrap")
        field = field / field.square().mean((2, 3), keepdim=True).sqrt()
        ice += torch.exp(-2 * field.abs()) / 2**i  # highest where the field changes sign: thin lines
    ice = ice / ice.amax((2, 3), keepdim=True)
    return kept * images + weight * ice * tinted(ICE, images.shape[1])


def fog(images: Tensor, draws: Draws, amount: float, smoothness: float) -> Tensor:
    """The image behind a cloud, darkened so that its brightest level stays what it was."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    cloud = plasma(draws, max(images.shape[-2:]), smoothness)[..., : images.shape[-2], : images.shape[-1]]
    return (images + amount * cloud) * brightest / (brightest + amount)


def brightness(images: Tensor, _: Draws, amount: float) -> Tensor:
    """HSV's value raised."""
    return brighter(images, amount)


def plasma(draws: Draws, size: int, smoothness: float) -> Tensor:
    """A cloud an image, (rows, 1, n, n) from 0 to 1, by midpoint displacement on a torus whose side is a power of two.

    Midpoints are means of their four neighbours and a uniform displacement, whose range falls by smoothness squared
    whenever the mesh is halved.
    """
    step = 1 << (size - 1).bit_length()
    cloud = torch.zeros(draws.rows, step, step, dtype=torch.float64)
    reach = 1.0
    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        shape, names = corners.shape[1:], (f"{kind} {step}" for kind in ("middle", "upper", "left"))
        middle, upper, left = (draws.uniform(name, *shape, low=-reach, high=reach) for name in names)
        beside, below = corners.roll(-1, 2), corners.roll(-1, 1)
        middle += (corners + beside + below + beside.roll(-1, 1)) / 4
        upper += (corners + beside + middle + middle.roll(1, 1)) / 4
        left += (corners + below + middle + middle.roll(1, 2)) / 4
        cloud[:, half::step, half::step], cloud[:, ::step, half::step], cloud[:, half::step, ::step] = (
            middle,
            upper,
            left,
        )
        step, reach = half, reach / smoothness**2
    cloud = cloud - cloud.amin((1, 2), keepdim=True)
    return (cloud / cloud.amax((1, 2), keepdim=True)).float().unsqueeze(1)
