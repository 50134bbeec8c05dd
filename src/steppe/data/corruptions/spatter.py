"""Water or mud on the lens. Images are float, 0 to 1; what leaves that range is clipped afterwards."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..colours import tinted
from .blur import smoothed
from .draws import Draws

WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise
MUD = (63 / 255, 42 / 255, 20 / 255)  # brown
EMBOSS = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))  # light from one corner


def spatter(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    smoothness: float,
    least: float,
    weight: float,
    mud: float,
) -> Tensor:
    """Drops where smooth noise is high: bright water that refracts at its rims, or brown mud that covers."""
    liquid = mean + deviation * draws.normal("liquid", 1, *images.shape[-2:])
    liquid = smoothed(liquid, smoothness, mode="nearest")
    liquid = liquid.masked_fill(liquid < least, 0.0)
    channels = images.shape[1]
    if mud:
        cover = smoothed((liquid > least).float(), weight, mode="nearest")
        cover = cover.masked_fill(cover < 0.8, 0.0)
        return torch.lerp(images, tinted(MUD, channels), cover)
    shine = torch.from_numpy(refraction(np.clip(liquid.squeeze(1).numpy() * 255, 0, 255).astype(np.uint8))).unsqueeze(1)
    shine = shine / shine.amax((2, 3), keepdim=True).clamp(min=1e-12)  # an image without a drop stays as it is
    return images + weight * shine * tinted(WATER, channels)


def refraction(liquid: np.ndarray) -> np.ndarray:
    """How bright liquid (rows, height, width; bytes) shines: its distance from edges, equalised and lit from a side."""
    from scipy.ndimage import correlate, distance_transform_edt, uniform_filter

    lit = np.array(EMBOSS)[None]
    # images are laid so far apart that the nearest edge is always one's own; the authors cut distances at 20
    distance = distance_transform_edt(~edges(liquid), sampling=(1e3, 1, 1)).clip(max=20)
    relief = equalised(uniform_filter(distance, (0, 3, 3), mode="mirror").astype(np.uint8))
    relief = correlate(relief.astype(np.int64), lit, mode="mirror").clip(0, 255)
    relief = np.rint(uniform_filter(relief.astype(np.float64), (0, 3, 3), mode="mirror"))
    shine: np.ndarray = (liquid * relief).astype(np.float32)
    return shine


def edges(images: np.ndarray, low: float = 50, high: float = 150) -> np.ndarray:
    """Canny's edges of bytes (rows, height, width): ridges of the slope above `low` that reach `high` somewhere."""
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
    found: np.ndarray = strong[parts]
    return found


def equalised(images: np.ndarray) -> np.ndarray:
    """Bytes (rows, height, width) whose levels are spread so that each image has all of them equally often."""
    rows, pixels = len(images), images[0].size
    flat = images.reshape(rows, pixels).astype(np.int64)
    counts = np.bincount((flat + 256 * np.arange(rows)[:, None]).ravel(), minlength=256 * rows).reshape(rows, 256)
    lowest = counts[np.arange(rows), flat.min(1)][:, None]  # these pixels become 0
    upto = (counts.cumsum(1) - lowest).clip(min=0)
    levels = np.rint(upto * (255 / np.maximum(pixels - lowest, 1)))
    levels = np.where(lowest == pixels, np.arange(256), levels)  # one level only: nothing to spread
    return np.take_along_axis(levels, flat, 1).reshape(images.shape).astype(np.uint8)
