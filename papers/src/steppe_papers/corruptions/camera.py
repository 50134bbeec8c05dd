"""Corruptions by a camera and its software: noise, blurs, colours, resolution, JPEG, distortion.

Images are floats; the caller clips them to 0 .. 1.
"""

from __future__ import annotations

from io import BytesIO
from math import ceil

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, interpolate, pad

from steppe.data.corruptions import Draws, register
from steppe.data.pixels import grey


def tinted(colour: tuple[float, float, float], channels: int) -> Tensor:
    """Return a colour (red, green, blue), or its luma for one channel, shaped to multiply images."""
    rgb = torch.tensor(colour).view(1, 3, 1, 1)
    return rgb if channels == 3 else grey(rgb)


# -- noise ------------------------------------------------------------------------------------------------------------


@register(
    "gaussian_noise",
    cifar=((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    tiny_imagenet=((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
)
def gaussian_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    """Add Gaussian noise of the same size at every level, as of electronics in poor light."""
    return images + deviation * draws.normal("noise", *images.shape[1:])


@register(
    "shot_noise",
    cifar=((500,), (250,), (100,), (75,), (50,)),
    tiny_imagenet=((250,), (100,), (50,), (30,), (15,)),
)
def shot_noise(images: Tensor, draws: Draws, photons: float) -> Tensor:
    """Draw Poisson counts of photons, with mean `photons` where the image is white."""
    from scipy.special import pdtr

    level = np.round(images.numpy() * 255).astype(np.int64)  # images are bytes, so 256 distributions suffice
    most = int(photons + 12 * photons**0.5) + 12
    chances = pdtr(np.arange(most), np.arange(256)[:, None] * photons / 255)
    ladder = (chances + np.arange(256)[:, None]).ravel()  # all 256 distribution functions, one above the other
    place = np.searchsorted(ladder, draws.uniform("photons", *images.shape[1:]).numpy() + level)
    counts = np.maximum(place - level * most, 0)  # a chance below rounding error lands one step under its ladder
    return torch.from_numpy((counts / photons).astype(np.float32))


@register(
    "impulse_noise",
    cifar=((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    tiny_imagenet=((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
)
def impulse_noise(images: Tensor, draws: Draws, amount: float) -> Tensor:
    """Set this share of the values, per channel, to 0 or 1, half of them each (salt and pepper)."""
    chance = draws.uniform("place", *images.shape[1:])
    return images.masked_fill(chance < amount, 1.0).masked_fill(chance < amount / 2, 0.0)


@register(
    "speckle_noise",
    cifar=((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    tiny_imagenet=((0.15,), (0.2,), (0.25,), (0.3,), (0.35,)),
)
def speckle_noise(images: Tensor, draws: Draws, deviation: float) -> Tensor:
    """Add Gaussian noise in proportion to the level."""
    return images * (1 + deviation * draws.normal("noise", *images.shape[1:]))


# -- blur -------------------------------------------------------------------------------------------------------------


@register(
    "gaussian_blur",
    cifar=((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    tiny_imagenet=((0.5,), (0.75,), (1,), (1.25,), (1.5,)),
)
def gaussian_blur(images: Tensor, _: Draws, sigma: float) -> Tensor:
    """Convolve with a Gaussian; repeat border pixels outwards."""
    return smoothed(images, sigma, mode="nearest")


@register(
    "defocus_blur",
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    tiny_imagenet=((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
)
def defocus_blur(images: Tensor, _: Draws, radius: float, softness: float) -> Tensor:
    """Convolve with a disc whose edge is softened by a Gaussian of three pixels; reflect borders."""
    from scipy.ndimage import correlate

    reach = int(radius)
    line = np.arange(-reach - 1, reach + 2)
    disc = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    beside = np.exp(-0.5 / softness**2)
    edge = np.array([beside, 1, beside]) / (1 + 2 * beside)
    soft = correlate(disc / disc.sum(), np.outer(edge, edge), mode="constant")
    kernel = torch.from_numpy(soft).float()[None, None]
    wide = pad(images, [reach + 1] * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
    return conv2d(wide, kernel).view_as(images)


@register(
    "glass_blur",
    cifar=((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),
    tiny_imagenet=((0.1, 1, 1), (0.5, 1, 1), (0.6, 2, 1), (0.7, 1, 2), (0.9, 2, 2)),
)
def glass_blur(images: Tensor, draws: Draws, sigma: float, rounds: float, reach: float = 1) -> Tensor:
    """Blur, replace each pixel by itself or by a neighbour, at random, and blur again.

    The authors' script intends to exchange the two pixels but, because arrays alias, copies one over the other; this
    code does the same, as the published images do. It goes from the last pixel to the first, and a neighbour is up to
    `reach` pixels back or `reach` - 1 pixels ahead, where pixels are replaced already. Pixels near the border stay.
    """
    images, far = smoothed(images, sigma, mode="nearest"), int(reach)
    height, width = images.shape[-2:]
    for turn in range(int(rounds)):
        back = draws.integers(f"moves {turn}", 2, height, width, low=1 - far, high=far + 1)
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
    steps = neighbours.flatten(1).T.numpy()
    sources = np.repeat(np.arange(height * width)[:, None], len(back), axis=1)
    every = np.arange(len(back))
    for pixel in inside.flatten().nonzero().flatten().flip(0).tolist():
        sources[pixel] = sources[steps[pixel], every]
    return torch.from_numpy(sources.T)


@register(
    "motion_blur",
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    tiny_imagenet=((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
)
def motion_blur(images: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    """Streak each image in a random direction within 45 degrees of the horizontal."""
    return streaked(images, radius, sigma, draws.uniform("angle", low=-45, high=45))


@register(
    "zoom_blur",
    cifar=((6,), (11,), (15,), (20,), (25,)),
    tiny_imagenet=((6,), (11,), (15,), (20,), (25,)),
)
def zoom_blur(images: Tensor, _: Draws, percent: float) -> Tensor:
    """Average the image (counted twice) and its enlargements, percent by percent."""
    zooms = [enlarged(images, 1 + k / 100) for k in range(int(percent) + 1)]
    return torch.stack([images, *zooms]).mean(0)


def smoothed(images: Tensor, sigma: float, mode: str, truncate: float = 4.0) -> Tensor:
    """Convolve with a Gaussian along the last two dimensions."""
    from scipy.ndimage import gaussian_filter

    return torch.from_numpy(gaussian_filter(images.numpy(), sigma, mode=mode, truncate=truncate, axes=(-2, -1)))


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


# -- digital ----------------------------------------------------------------------------------------------------------


@register(
    "contrast",
    cifar=((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    tiny_imagenet=((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
)
def contrast(images: Tensor, _: Draws, left: float) -> Tensor:
    """Move each channel towards its mean."""
    return torch.lerp(images.mean((2, 3), keepdim=True), images, left)


@register(
    "saturate",
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    tiny_imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
)
def saturate(images: Tensor, _: Draws, factor: float, amount: float) -> Tensor:
    """Scale HSV's saturation by a factor and add an amount, clipped to 0 .. 1; keep hue and value.

    Greys have no hue; HSV sets it to red, as do Hendrycks & Dietterich (2019): an amount above 0 reddens greys.
    One channel has no saturation and stays as it is.
    """
    if images.shape[1] == 1:
        return images
    value, least = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    saturation = (value - least) / value.clamp(min=1e-12)
    changed = (saturation * factor + amount).clamp(0, 1)
    below = torch.where(saturation > 0, (value - images) / saturation.clamp(min=1e-12), value * tinted((0, 1, 1), 3))
    return value - below * changed


@register(
    "pixelate",
    cifar=((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    tiny_imagenet=((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
)
def pixelate(images: Tensor, _: Draws, left: float) -> Tensor:
    """Downsample and upsample by box averages, as Pillow's BOX filter does."""
    for dim, size in ((-2, images.shape[-2]), (-1, images.shape[-1])):
        small = int(size * left)
        there_and_back = boxes(size, small) @ boxes(small, size)
        images = torch.tensordot(images, there_and_back, dims=([dim], [1])).movedim(-1, dim)
    return images


def boxes(new: int, old: int) -> Tensor:
    """Return weights (new, old) of pixels in a line: equal for old pixels with centres in the box of the new one."""
    scale = old / new
    distance = np.arange(old) + 0.5 - (np.arange(new)[:, None] + 0.5) * scale
    reach = max(scale, 1) / 2
    weights = ((distance > -reach) & (distance <= reach)).astype(np.float32)
    return torch.from_numpy(weights / weights.sum(1, keepdims=True))


@register(
    "jpeg_compression",
    cifar=((80,), (65,), (58,), (50,), (40,)),
    tiny_imagenet=((65,), (58,), (50,), (40,), (25,)),
)
def jpeg_compression(images: Tensor, _: Draws, quality: float) -> Tensor:
    """Encode and decode as JPEG by Pillow with its defaults; one channel as a grey JPEG."""
    from PIL import Image

    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    out = np.empty_like(pixels)
    for before, after in zip(pixels, out, strict=True):
        file = BytesIO()
        Image.fromarray(before.squeeze(2) if before.shape[2] == 1 else before).save(file, "JPEG", quality=int(quality))
        after[:] = np.asarray(Image.open(file)).reshape(before.shape)
    return torch.from_numpy(out).permute(0, 3, 1, 2).float() / 255


@register(
    "elastic_transform",
    cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    tiny_imagenet=((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
)
def elastic_transform(images: Tensor, draws: Draws, strength: float, smoothness: float, moved: float) -> Tensor:
    """Distort by an affine map that moves three points at random, then by a smooth random displacement field."""
    height, width = images.shape[-2:]
    side = min(height, width)
    images = sampled(images, *_affine(draws, height, width, moved * side), mirrored_twice=False)
    if strength == 0:
        return images
    field = draws.uniform("field", 2, height, width, low=-1, high=1)
    field = strength * side * smoothed(field, smoothness * side, mode="reflect", truncate=3.0)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return sampled(images, rows + field[:, 0], columns + field[:, 1], mirrored_twice=True)


def sampled(images: Tensor, rows: Tensor, columns: Tensor, mirrored_twice: bool) -> Tensor:
    """Sample bilinearly at places in pixels; outside reflect, with the border pixel once or twice."""
    height, width = images.shape[-2:]
    if mirrored_twice:  # grids from edge to edge
        grid = torch.stack([(2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1], -1)
    else:  # grids from centre to centre
        grid = torch.stack([2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1], -1)
    return grid_sample(
        images, grid.to(images.dtype), mode="bilinear", padding_mode="reflection", align_corners=not mirrored_twice
    )


def _affine(draws: Draws, height: int, width: int, reach: float) -> tuple[Tensor, Tensor]:
    """Return the origin of each pixel under the affine map that moves three corners of a central square."""
    third, middle = min(height, width) // 3, (height // 2, width // 2)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64) * third + torch.tensor(middle)
    images = corners + draws.uniform("corners", 3, 2, low=-reach, high=reach)
    ones = torch.ones(draws.rows, 3, 1, dtype=torch.float64)
    back = torch.linalg.solve(torch.cat([images, ones], 2), corners.expand(draws.rows, 3, 2))  # from images to corners
    places = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()
    origin = places @ back[:, :2] + back[:, 2:]
    return origin[..., 0].view(-1, height, width), origin[..., 1].view(-1, height, width)
