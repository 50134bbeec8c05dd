"""Augmentation of training batches on their device, as a function of one generator.

Images are on the scale 0 .. 255, bytes or floats. Nothing here synchronises with the device or loops over images.

RandAugment (Cubuk et al. 2020) is a reduced version: each image draws its operations from thirteen of the paper's
fourteen, without equalize, which needs a histogram per image. All images go through the same kernels, in which an
operation that an image did not draw is the identity: about 130 small kernels, which the feed shares among many batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log, pi

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

from .._util.names import unknown
from .pixels import grey

Augmentation = Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]]

MARGIN = 4  # pixels padded on each side: He et al. 2016, Section 4.2, and the papers' CIFAR runs since
QUANTILES = 4096  # of the table of the Beta distribution

# RandAugment
GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
BLENDS = ("brightness", "contrast", "colour", "sharpness")
LEVELS = ("solarize", "posterize", "autocontrast")
OPERATIONS = ("identity", *GEOMETRIC, *BLENDS, *LEVELS)
STRONGEST = 30  # the paper's scale of magnitudes
MIDDLE = 128.0  # the grey that comes in from outside, as in the authors' code

# random resized crops: share of the area, ratio of the sides, and how often a box is drawn before the whole image is
# taken (Szegedy et al. 2015, Section 6, as in torchvision)
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
JITTER = 0.4  # Agnostic-SAM's paper gives no amounts: our choice, a common one in ImageNet code

# the paper's largest amounts: shear, translation as a share of the side, angle, and distance of a blend's factor from 1
SHEAR, TRANSLATION, ANGLE, BLEND = 0.3, 0.45, pi / 6, 0.9
POSTERIZE_BITS = 4  # as many of the eight are cut off at the most


@dataclass(frozen=True)
class Augmentations:
    """Augmentations of single images, which do not depend on batches, and then of whole batches."""

    by_image: tuple[Augmentation, ...] = ()
    by_batch: tuple[Augmentation, ...] = ()

    def __call__(self, images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        for step in (*self.by_image, *self.by_batch):
            images, targets = step(images, targets, draws)
        return images, targets


def augmentation(names: Sequence[str], classes: int | None = None) -> Augmentations:
    """Return augmentations by name.

    Parameters
    ----------
    names
        Keys of `AUGMENTATIONS` or `PIPELINES`, applied in order, mixup last.
    classes
        The number of classes, which mixup needs for its soft labels.

    """
    names = expanded(names)
    if "mixup" in names and classes is None:
        raise ValueError("mixup makes soft labels and needs the number of classes: augmentation(names, classes=10)")
    by_image = tuple(AUGMENTATIONS[name]() for name in names if name != "mixup")
    return Augmentations(by_image, (mixup(classes),) * names.count("mixup") if classes else ())


def expanded(names: Sequence[str]) -> list[str]:
    """Return the names of single augmentations, with those of a pipeline in its place."""
    for name in names:
        if name not in AUGMENTATIONS and name not in PIPELINES:
            raise ValueError(unknown("augmentation", name, [*AUGMENTATIONS, *PIPELINES]))
    return [single for name in names for single in PIPELINES.get(name, (name,))]


def crop(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """Crop a window of the image's size at random from the image with a black margin."""
    _require_images(images, "crop")
    return _window(pad(images, [MARGIN] * 4), images.shape, draws), targets


def crop_reflect(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """Crop with a margin that reflects the image (Zagoruyko & Komodakis 2016, Section 3)."""
    _require_images(images, "crop-reflect")
    height, width = images.shape[-2:]
    if min(height, width) <= MARGIN:
        raise ValueError(f"crop-reflect takes images above {MARGIN} pixels; these are {height}x{width}")
    wide = images.index_select(2, _mirrored(height, images.device)).index_select(3, _mirrored(width, images.device))
    return _window(wide, images.shape, draws), targets


def flip(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """Mirror each image horizontally with probability 1/2."""
    _require_images(images, "flip")
    coin = torch.randint(0, 2, (len(images), 1, 1, 1), generator=draws, device=images.device, dtype=torch.bool)
    return torch.where(coin, images.flip(3), images), targets


def resized_crop(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """Cut a random box out of each image and resize it to the image's size, bilinearly (Szegedy et al. 2015)."""
    _require_images(images, "resized-crop")
    height, width = images.shape[-2:]
    top, left, tall, wide = random_boxes(len(images), height, width, draws, images.device)
    rows = _resized_places(top, tall, height)
    columns = _resized_places(left, wide, width)
    shape = (len(images), height, width)
    grid = torch.stack([columns.unsqueeze(1).expand(shape), rows.unsqueeze(2).expand(shape)], -1)
    out = grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=True)
    return (out if images.is_floating_point() else out.round_().to(images.dtype)), targets


def random_boxes(
    rows: int, height: int, width: int, draws: Generator, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, left, height and width of one box per image, in pixels: the first of ten draws that fits inside.

    Where none fits, the box is the largest one in the centre whose ratio is allowed.
    """
    area, ratio = torch.rand(2, TRIES, rows, generator=draws, device=device)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * area)
    ratio = torch.exp(log(RATIO[0]) + (log(RATIO[1]) - log(RATIO[0])) * ratio)
    wide, tall = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
    first = fits.byte().argmax(0, keepdim=True)  # 0 where none fits
    fit = fits.any(0)
    wide = torch.where(fit, wide.gather(0, first)[0], min(width, round(height * RATIO[1])))
    tall = torch.where(fit, tall.gather(0, first)[0], min(height, round(width / RATIO[0])))
    down, right = torch.rand(2, rows, generator=draws, device=device)
    top, left = _start(down, height - tall, fit), _start(right, width - wide, fit)
    return top, left, tall, wide


def _start(chance: Tensor, room: Tensor, random: Tensor) -> Tensor:
    """Return whole numbers from 0 to `room`, even over all of them or in the middle."""
    return torch.where(random, torch.minimum((chance * (room + 1)).floor(), room), (room / 2).floor())


def _resized_places(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return where pixels of the resized box lie in the image, as grid_sample counts; not outside the box."""
    centres = (torch.arange(size, device=start.device) + 0.5) * (length / size).unsqueeze(1) - 0.5
    places = torch.minimum(centres.clamp(min=0), length.unsqueeze(1) - 1) + start.unsqueeze(1)
    return places * (2 / max(size - 1, 1)) - 1


def colour_jitter(brightness: float = JITTER, contrast: float = JITTER, saturation: float = JITTER) -> Augmentation:
    """Change brightness, contrast and saturation of each image, in random order, by a factor around 1.

    As torchvision's ColorJitter without hue, and rounded once at the end.

    Parameters
    ----------
    brightness, contrast, saturation
        The largest distance of the factor from 1.

    """
    reach = (brightness, contrast, saturation)

    def jitter(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        _require_images(images, "colour-jitter")
        order = torch.rand(len(images), 3, generator=draws, device=images.device).argsort(1)
        spread = torch.rand(len(images), 3, generator=draws, device=images.device) * 2 - 1
        out = images.float()
        for change in order.unbind(1):
            is_ = [(change == i).view(-1, 1, 1, 1) for i in range(3)]
            factor = 1 + torch.stack([(change == i) * reach[i] * spread[:, i] for i in range(3)]).sum(0)
            shades = grey(out)
            degenerate = torch.where(is_[1], shades.mean((2, 3), keepdim=True), shades).masked_fill(is_[0], 0)
            out = torch.lerp(degenerate.expand_as(out), out, factor.clamp(min=0).view(-1, 1, 1, 1)).clamp_(0, 255)
        return (out if images.is_floating_point() else out.round_().to(images.dtype)), targets

    return jitter


def mixup(classes: int, alpha: float = 0.5) -> Augmentation:
    """Mix each row with another of the batch, inputs and one-hot targets (Zhang et al. 2018).

    One mixing weight per batch, from Beta(alpha, alpha). Targets that are class probabilities are mixed as they are.

    Parameters
    ----------
    classes
        The number of classes.
    alpha
        0.5 as in Andriushchenko et al. 2023, Section 5.1; the authors of mixup use 1 on CIFAR.

    """

    def mix(inputs: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        partner = torch.randperm(len(inputs), generator=draws, device=inputs.device)
        share = beta(alpha, draws, inputs.device)
        soft = targets if targets.is_floating_point() else _one_hot(targets, classes)
        inputs = inputs if inputs.is_floating_point() else inputs.float()
        return torch.lerp(inputs[partner], inputs, share), torch.lerp(soft[partner], soft, share)

    return mix


def beta(alpha: float, draws: Generator, device: torch.device) -> Tensor:
    """Draw from Beta(alpha, alpha) by its quantiles: torch's own sampler takes no generator."""
    table = _beta_quantiles(alpha, device)
    place = torch.rand(1, generator=draws, device=device) * (QUANTILES - 1)
    below = place.long()
    return torch.lerp(table[below], table[below + 1], place - below)


def randaugment(operations: int = 2, magnitude: float = 9.0) -> Augmentation:
    """Apply random operations to each image.

    Parameters
    ----------
    operations, magnitude
        Their number per image, and their magnitude on a scale to 30: the paper's choice for ResNet-50 on ImageNet.

    """
    strength = magnitude / STRONGEST

    def augment(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        _require_images(images, "randaugment")
        rows, device = len(images), images.device
        which = torch.randint(0, len(OPERATIONS), (operations, rows), generator=draws, device=device)
        sign = torch.randint(0, 2, (operations, rows), generator=draws, device=device).float() * 2 - 1
        out = images.float()
        for op, signed in zip(which, sign * strength, strict=True):
            out = apply_operation(out, op, signed)
        return out.round_().to(images.dtype), targets

    return augment


AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {
    "crop": lambda: crop,
    "crop-reflect": lambda: crop_reflect,
    "flip": lambda: flip,
    "mixup": mixup,
    "randaugment": randaugment,
    "resized-crop": lambda: resized_crop,
    "colour-jitter": colour_jitter,
    "brightness-contrast": lambda: colour_jitter(saturation=0),
}
PIPELINES: dict[str, tuple[str, ...]] = {  # those of the papers
    "cifar": ("crop", "flip"),  # Universal SAM, Agnostic-SAM and SharpBalance; SA-SAM's paper names none
    "cifar-randaugment": ("crop", "flip", "randaugment"),  # A modern look, Section 5.1
    "fine-grained": ("resized-crop", "flip", "brightness-contrast"),  # Agnostic-SAM, Section 4.1
}


def _window(wide: Tensor, shape: torch.Size, draws: Generator) -> Tensor:
    """Copy one window per image from a view of all windows."""
    rows, height, width = len(wide), shape[-2], shape[-1]
    windows = wide.unfold(2, height, 1).unfold(3, width, 1)
    place = torch.randint(0, 2 * MARGIN + 1, (2, rows), generator=draws, device=wide.device)
    return windows[torch.arange(rows, device=wide.device), :, place[0], place[1]]


@lru_cache(maxsize=32)
def _mirrored(size: int, device: torch.device) -> Tensor:
    """Return the pixel numbers of a line with reflected margins, without repeating the border pixel."""
    places = torch.arange(-MARGIN, size + MARGIN).abs()
    return torch.where(places < size, places, 2 * (size - 1) - places).to(device)


@lru_cache(maxsize=32)
def _beta_quantiles(alpha: float, device: torch.device) -> Tensor:
    from scipy.special import betaincinv

    levels = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    return torch.from_numpy(betaincinv(alpha, alpha, levels.numpy())).float().to(device)


def _one_hot(targets: Tensor, classes: int) -> Tensor:
    """Encode without torch's check of the labels, which synchronises."""
    return (targets.unsqueeze(1) == torch.arange(classes, device=targets.device)).float()


def _require_images(images: Tensor, name: str) -> None:
    if images.ndim != 4:
        raise ValueError(f"{name} takes images (rows, channels, height, width); these are {tuple(images.shape)}")


def apply_operation(images: Tensor, op: Tensor, strength: Tensor) -> Tensor:
    """Apply one operation per image, by its number in OPERATIONS, with a strength between -1 and 1."""
    drawn = op.unsqueeze(1) == torch.arange(len(OPERATIONS), device=op.device)
    is_ = dict(zip(OPERATIONS, drawn.view(-1, len(OPERATIONS), 1, 1, 1).unbind(1), strict=True))
    amount = dict(zip(OPERATIONS, (drawn * strength.unsqueeze(1)).unbind(1), strict=True))  # 0 where not drawn
    return _levels(_blended(_moved(images, amount), is_, amount), is_, strength.abs().view(-1, 1, 1, 1))


def _moved(images: Tensor, amount: dict[str, Tensor]) -> Tensor:
    """Apply shears, translations and rotations as one affine map per image: nearest pixels, grey outside."""
    tall = images.shape[-2] / images.shape[-1]
    angle = amount["rotate"] * ANGLE
    cos, sin = angle.cos(), angle.sin()
    rows = [  # in units of half the width and half the height, as in affine_grid
        cos, tall * (amount["shear_x"] * SHEAR - sin), amount["translate_x"] * 2 * TRANSLATION,
        (amount["shear_y"] * SHEAR + sin) / tall, cos, amount["translate_y"] * 2 * TRANSLATION,
    ]  # fmt: skip
    grid = affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images - MIDDLE, grid, mode="nearest", align_corners=False).add_(MIDDLE)


def _blended(images: Tensor, is_: dict[str, Tensor], amount: dict[str, Tensor]) -> Tensor:
    """Extrapolate from, or blend with, a degenerate image: black, its mean grey, its greys, itself smoothed."""
    shades = grey(images)
    degenerate = torch.where(is_["contrast"], shades.mean((2, 3), keepdim=True), shades)
    degenerate = torch.where(is_["sharpness"], _smoothed(images), degenerate).masked_fill_(is_["brightness"], 0)
    factor = torch.stack([amount[name] for name in BLENDS]).sum(0).mul_(BLEND).add_(1)
    return torch.lerp(degenerate, images, factor.view(-1, 1, 1, 1)).clamp_(0, 255)  # factor 1 is the image itself


def _levels(images: Tensor, is_: dict[str, Tensor], strength: Tensor) -> Tensor:
    """Solarize (invert above a threshold), posterize (fewer levels) or autocontrast (stretch to the full range)."""
    out = torch.where(is_["solarize"] & (images >= 256 * (1 - strength)), 255 - images, images)
    step = torch.exp2((strength * POSTERIZE_BITS).round())
    out = torch.where(is_["posterize"], (images.round() / step).floor() * step, out)
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(is_["autocontrast"] & (high > low), (images - low) * (255 / (high - low)), out)


def _smoothed(images: Tensor) -> Tensor:
    """Average nine pixels with the centre weighted five times; keep the border (Pillow's SMOOTH)."""
    out = images.clone()
    inner = conv2d(images.flatten(0, 1).unsqueeze(1), _nine(images.device))
    out[..., 1:-1, 1:-1] = inner.view(*images.shape[:2], *inner.shape[-2:])
    return out


@lru_cache(maxsize=32)
def _nine(device: torch.device) -> Tensor:
    return torch.tensor([1.0, 1, 1, 1, 5, 1, 1, 1, 1], device=device).div_(13).view(1, 1, 3, 3)
