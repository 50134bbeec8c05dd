"""RandAugment (Cubuk et al. 2020) for a whole batch at once: random operations of one strength, a few in a row.

"Lite": each image draws its operations from thirteen of the paper's fourteen; equalize, which needs a histogram an
image, is left out. All images go through the same few kernels, in which an operation that an image did not draw is the
identity for it: some 130 small kernels, which the feed shares among many batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import pi

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

from .colours import grey

GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
BLENDS = ("brightness", "contrast", "colour", "sharpness")
LEVELS = ("solarize", "posterize", "autocontrast")
OPERATIONS = ("identity", *GEOMETRIC, *BLENDS, *LEVELS)
STRONGEST = 30  # the paper's scale of magnitudes
MIDDLE = 128.0  # the grey that comes in from outside, as in the authors' code

# the paper's largest amounts: shear, translation as a share of the side, angle, and distance of a blend's factor from 1
SHEAR, TRANSLATION, ANGLE, BLEND = 0.3, 0.45, pi / 6, 0.9
POSTERIZE_BITS = 4  # as many of the eight are cut off at the most


def randaugment(
    operations: int = 2, magnitude: float = 9.0
) -> Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]]:
    """Two operations of magnitude 9 of 30 for every image: the paper's choice for ResNet-50 on ImageNet."""
    strength = magnitude / STRONGEST

    def augment(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        if images.ndim != 4:
            raise ValueError(f"randaugment takes images (rows, channels, height, width), not {tuple(images.shape)}")
        rows, device = len(images), images.device
        which = torch.randint(0, len(OPERATIONS), (operations, rows), generator=draws, device=device)
        sign = torch.randint(0, 2, (operations, rows), generator=draws, device=device).float() * 2 - 1
        out = images.float()
        for op, signed in zip(which, sign * strength, strict=True):
            out = apply(out, op, signed)
        return out.round_().to(images.dtype), targets

    return augment


def apply(images: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """One operation an image, by its number in OPERATIONS, with a strength between -1 and 1."""
    drawn = op.unsqueeze(1) == torch.arange(len(OPERATIONS), device=op.device)
    is_ = dict(zip(OPERATIONS, drawn.view(-1, len(OPERATIONS), 1, 1, 1).unbind(1), strict=True))
    amount = dict(zip(OPERATIONS, (drawn * strength.unsqueeze(1)).unbind(1), strict=True))  # 0 where it is not drawn
    return _levels(_blended(_moved(images, amount), is_, amount), is_, strength.abs().view(-1, 1, 1, 1))


def _moved(images: Tensor, amount: dict[str, Tensor]) -> Tensor:
    """Shears, translations and rotations as one affine map an image, nearest pixels, grey outside."""
    tall = images.shape[-2] / images.shape[-1]
    angle = amount["rotate"] * ANGLE
    cos, sin = angle.cos(), angle.sin()
    rows = [  # in units of half the width and half the height, as grids have them
        cos, tall * (amount["shear_x"] * SHEAR - sin), amount["translate_x"] * 2 * TRANSLATION,
        (amount["shear_y"] * SHEAR + sin) / tall, cos, amount["translate_y"] * 2 * TRANSLATION,
    ]  # fmt: skip
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images - MIDDLE, grid, mode="nearest", align_corners=False).add_(MIDDLE)


def _blended(images: Tensor, is_: dict[str, Tensor], amount: dict[str, Tensor]) -> Tensor:
    """Moved away from, or towards, a lesser image: black, its mean grey, its greys, itself smoothed."""
    shades = grey(images)
    lesser = torch.where(is_["contrast"], shades.mean((2, 3), keepdim=True), shades)
    lesser = torch.where(is_["sharpness"], _smoothed(images), lesser).masked_fill_(is_["brightness"], 0)
    factor = torch.stack([amount[name] for name in BLENDS]).sum(0).mul_(BLEND).add_(1)
    return torch.lerp(lesser, images, factor.view(-1, 1, 1, 1)).clamp_(0, 255)  # a factor of 1: the image itself


def _levels(images: Tensor, is_: dict[str, Tensor], strength: Tensor) -> Tensor:
    """Levels changed by a rule of their own: inverted above a threshold, made fewer, or spread to the full range."""
    out = torch.where(is_["solarize"] & (images >= 256 * (1 - strength)), 255 - images, images)
    step = torch.exp2((strength * POSTERIZE_BITS).round())
    out = torch.where(is_["posterize"], (images.round() / step).floor() * step, out)
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(is_["autocontrast"] & (high > low), (images - low) * (255 / (high - low)), out)


def _smoothed(images: Tensor) -> Tensor:
    """The mean of nine pixels with the centre counted five times, and the border as it was (Pillow's SMOOTH)."""
    out = images.clone()
    inner = conv2d(images.flatten(0, 1).unsqueeze(1), _nine(images.device))
    out[..., 1:-1, 1:-1] = inner.view(*images.shape[:2], *inner.shape[-2:])
    return out


@lru_cache(maxsize=32)
def _nine(device: torch.device) -> Tensor:
    return torch.tensor([1.0, 1, 1, 1, 5, 1, 1, 1, 1], device=device).div_(13).view(1, 1, 3, 3)
