"""Contrast, saturation, resolution, JPEG and distortion. Images are floats; the caller clips them to 0 .. 1."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ..pixels import saturated
from .blur import smoothed
from .noise import Draws


def contrast(images: Tensor, _: Draws, left: float) -> Tensor:
    """Move each channel towards its mean."""
    return torch.lerp(images.mean((2, 3), keepdim=True), images, left)


def saturate(images: Tensor, _: Draws, factor: float, amount: float) -> Tensor:
    """Lower or raise HSV's saturation."""
    return saturated(images, factor, amount)


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
