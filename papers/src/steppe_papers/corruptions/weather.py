"""Snow, frost, fog, brightness, and water or mud on the lens. Images are floats; the caller clips them to 0 .. 1."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from steppe.data.corruptions import Draws, register
from steppe.data.pixels import grey

from .camera import enlarged, smoothed, streaked, tinted

ICE = (0.78, 0.88, 1.0)  # the tint of frost: a pale blue
WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
MUD = (63 / 255, 42 / 255, 20 / 255)  # brown
EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))  # light from one corner


@register(
    "snow",
    cifar=(  # mean and deviation of flakes, their size, least level, streak's radius and sigma, what is not whitened
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    tiny_imagenet=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
)
def snow(
    images: Tensor,
    draws: Draws,
    mean: float,
    std: float,
    size: float,
    low: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Tensor:
    """Whiten the image and add streaks of flakes in one direction and in the opposite one."""
    flakes = enlarged(mean + std * draws.normal("flakes", 1, *images.shape[-2:]), size)
    flakes = flakes.masked_fill(flakes < low, 0.0).clamp(0, 1)
    streaks = streaked(flakes, radius, sigma, draws.uniform("angle", low=-135, high=-45))
    whitened = torch.maximum(images, 1.5 * grey(images) + 0.5)
    return kept * images + (1 - kept) * whitened + streaks + streaks.flip(2, 3)


@register(
    "frost",
    cifar=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    tiny_imagenet=((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
)
def frost(images: Tensor, draws: Draws, kept: float, weight: float) -> Tensor:
    """Overlay frost. A substitute: the authors overlay photographs of frost, which this project cannot redistribute.

    Here frost consists of ridges of smooth noise at three scales, like the veins of ice on a pane.
    """
    height, width = images.shape[-2:]
    ice = torch.zeros(len(images), 1, height, width)
    for i, sigma in enumerate((4.0, 2.0, 1.0)):
        field = smoothed(draws.normal(f"ice {i}", 1, height, width), sigma, mode="wrap")
        field = field / field.square().mean((2, 3), keepdim=True).sqrt()
        ice += torch.exp(-2 * field.abs()) / 2**i  # highest where the field changes sign: thin lines
    ice = ice / ice.amax((2, 3), keepdim=True)
    return kept * images + weight * ice * tinted(ICE, images.shape[1])


@register(
    "fog",
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    tiny_imagenet=((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
)
def fog(images: Tensor, draws: Draws, amount: float, smoothness: float) -> Tensor:
    """Add a cloud and darken the image so that its brightest level stays."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    cloud = plasma(draws, max(images.shape[-2:]), smoothness)[..., : images.shape[-2], : images.shape[-1]]
    return (images + amount * cloud) * brightest / (brightest + amount)


@register(
    "brightness",
    cifar=((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    tiny_imagenet=((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
)
def brightness(images: Tensor, _: Draws, amount: float) -> Tensor:
    """Raise HSV's value by an amount, clipped to 0 .. 1; keep hue and saturation.

    Red, green and blue are value * (1 - saturation * k) with k between 0 and 1 from the hue, so all three scale with
    the value; black, which has no hue, becomes grey.
    """
    value = images.amax(1, keepdim=True)
    raised = (value + amount).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-12)), raised)


def plasma(draws: Draws, size: int, smoothness: float) -> Tensor:
    """Return one cloud per image, (rows, 1, n, n) from 0 to 1, by midpoint displacement on a torus of side 2^k.

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
        cloud[:, half::step, half::step] = middle
        cloud[:, ::step, half::step] = upper
        cloud[:, half::step, ::step] = left
        step, reach = half, reach / smoothness**2
    cloud = cloud - cloud.amin((1, 2), keepdim=True)
    return (cloud / cloud.amax((1, 2), keepdim=True)).float().unsqueeze(1)


@register(
    "spatter",
    cifar=(  # mean and deviation of liquid, its smoothness, least level; weight of water or sigma of mud; 1 is mud
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    tiny_imagenet=(
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
)
def spatter(
    images: Tensor, draws: Draws, mean: float, std: float, smoothness: float, low: float, weight: float, mud: float
) -> Tensor:
    """Add drops where smooth noise is high: bright water that refracts at its rims, or opaque brown mud."""
    liquid = mean + std * draws.normal("liquid", 1, *images.shape[-2:])
    liquid = smoothed(liquid, smoothness, mode="nearest")
    liquid = liquid.masked_fill(liquid < low, 0.0)
    channels = images.shape[1]
    if mud:
        cover = smoothed((liquid > low).float(), weight, mode="nearest")
        cover = cover.masked_fill(cover < 0.8, 0.0)
        return torch.lerp(images, tinted(MUD, channels), cover)
    shine = torch.from_numpy(refraction(np.clip(liquid.squeeze(1).numpy() * 255, 0, 255).astype(np.uint8))).unsqueeze(1)
    shine = shine / shine.amax((2, 3), keepdim=True).clamp(min=1e-12)  # an image without drops stays unchanged
    return images + weight * shine * tinted(WATER, channels)


def refraction(liquid: np.ndarray) -> np.ndarray:
    """Return the brightness of liquid (rows, height, width; bytes): its distance from edges, equalised and embossed."""
    from scipy.ndimage import correlate, distance_transform_edt, uniform_filter

    lit = np.array(EMBOSS)[None]
    # images are far apart along axis 0, so the nearest edge is in the same image; the authors clip distances at 20
    distance = distance_transform_edt(~edges(liquid), sampling=(1e3, 1, 1)).clip(max=20)
    relief = equalised(uniform_filter(distance, (0, 3, 3), mode="mirror").astype(np.uint8))
    relief = correlate(relief.astype(np.int64), lit, mode="mirror").clip(0, 255)
    relief = np.rint(uniform_filter(relief.astype(np.float64), (0, 3, 3), mode="mirror"))
    shine: np.ndarray = (liquid * relief).astype(np.float32)
    return shine


def edges(images: np.ndarray, low: float = 50, high: float = 150) -> np.ndarray:
    """Return Canny's edges of bytes (rows, height, width): ridges of the slope above `low` that reach `high`."""
    from scipy.ndimage import correlate1d, label

    levels, rise, mean = images.astype(np.int64), (-1, 0, 1), (1, 2, 1)  # Sobel's filters, image by image
    across = correlate1d(correlate1d(levels, rise, axis=2, mode="nearest"), mean, axis=1, mode="nearest")
    down = correlate1d(correlate1d(levels, rise, axis=1, mode="nearest"), mean, axis=2, mode="nearest")
    slope = np.abs(across) + np.abs(down)
    wide = np.pad(slope, ((0, 0), (1, 1), (1, 1)))
    height, width = slope.shape[1:]

    def beside(dy: int, dx: int) -> np.ndarray:
        return wide[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    tangent = np.tan(np.pi / 8)  # a slope is compared with its two neighbours uphill and downhill, in four directions
    ridge = np.select(
        [np.abs(down) < tangent * np.abs(across), np.abs(across) < tangent * np.abs(down), across * down < 0],
        [
            (slope > beside(0, -1)) & (slope >= beside(0, 1)),
            (slope > beside(-1, 0)) & (slope >= beside(1, 0)),
            (slope > beside(-1, 1)) & (slope > beside(1, -1)),
        ],
        (slope > beside(-1, -1)) & (slope > beside(1, 1)),
    )
    within = np.zeros((3, 3, 3), dtype=int)
    within[1] = 1  # joined to the eight neighbours in the same image
    parts, count = label(ridge & (slope > low), structure=within)
    strong = np.zeros(count + 1, dtype=bool)
    strong[np.unique(parts[ridge & (slope > high)])] = True
    edge_map: np.ndarray = strong[parts]
    return edge_map


def equalised(images: np.ndarray) -> np.ndarray:
    """Equalise the histogram of each image of bytes (rows, height, width)."""
    rows, pixels = len(images), images[0].size
    flat = images.reshape(rows, pixels).astype(np.int64)
    counts = np.bincount((flat + 256 * np.arange(rows)[:, None]).ravel(), minlength=256 * rows).reshape(rows, 256)
    lowest = counts[np.arange(rows), flat.min(1)][:, None]  # these pixels become 0
    upto = (counts.cumsum(1) - lowest).clip(min=0)
    levels = np.rint(upto * (255 / np.maximum(pixels - lowest, 1)))
    levels = np.where(lowest == pixels, np.arange(256), levels)  # one level only: nothing to spread
    return np.take_along_axis(levels, flat, 1).reshape(images.shape).astype(np.uint8)
