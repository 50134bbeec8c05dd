"""What is done to a training batch: on the whole batch, where it lies, as a function of one generator.

Images are on the bytes' scale, 0 to 255, as bytes or as floats. Nothing here waits for the device, and nothing loops
over images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from .._util.names import unknown
from .randaugment import randaugment

Augmentation = Callable[[Tensor, Tensor, Generator], tuple[Tensor, Tensor]]

MARGIN = 4  # pixels padded on each side: He et al. 2016, Section 4.2, and the papers' CIFAR runs since
QUANTILES = 4096


@dataclass(frozen=True)
class Augmentations:
    """What is done to each image by itself, for which batches do not matter; and then to a batch as a whole."""

    by_image: tuple[Augmentation, ...] = ()
    by_batch: tuple[Augmentation, ...] = ()

    def __call__(self, images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        for step in (*self.by_image, *self.by_batch):
            images, targets = step(images, targets, draws)
        return images, targets


def augmentation(names: Sequence[str], classes: int | None = None) -> Augmentations:
    """The named augmentations one after the other, mixup last; it needs the number of classes, to make labels soft."""
    for name in names:
        if name not in AUGMENTATIONS:
            raise ValueError(unknown("augmentation", name, AUGMENTATIONS))
    if "mixup" in names and classes is None:
        raise ValueError("mixup makes soft labels and needs the number of classes: augmentation(names, classes=10)")
    by_image = tuple(AUGMENTATIONS[name]() for name in names if name != "mixup")
    return Augmentations(by_image, (mixup(classes),) * names.count("mixup") if classes else ())


def crop(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """A window of the image's size at a random place of the image with a black margin."""
    _want_images(images, "crop")
    return _window(pad(images, [MARGIN] * 4), images.shape, draws), targets


def crop_reflect(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """As crop, with a margin that mirrors the image (Zagoruyko & Komodakis 2016, Section 3)."""
    _want_images(images, "crop-reflect")
    height, width = images.shape[-2:]
    if min(height, width) <= MARGIN:
        raise ValueError(
            f"a margin of {MARGIN} pixels mirrors images above {MARGIN} pixels; these are {height}x{width}"
        )
    wide = images.index_select(2, _mirrored(height, images.device)).index_select(3, _mirrored(width, images.device))
    return _window(wide, images.shape, draws), targets


def flip(images: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
    """Left and right exchanged in every second image, at random."""
    _want_images(images, "flip")
    coin = torch.randint(0, 2, (len(images), 1, 1, 1), generator=draws, device=images.device, dtype=torch.bool)
    return torch.where(coin, images.flip(3), images), targets


def mixup(classes: int, alpha: float = 0.5) -> Augmentation:
    """Each row mixed with another of the batch, inputs and one-hot targets alike (Zhang et al. 2018).

    One share a batch, from Beta(alpha, alpha). alpha = 0.5 is that of Andriushchenko et al. 2023, Section 5.1; the
    authors of mixup take 1 on CIFAR. Targets that are already shares of classes are mixed as they are.
    """

    def mix(inputs: Tensor, targets: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        partner = torch.randperm(len(inputs), generator=draws, device=inputs.device)
        share = beta(alpha, draws, inputs.device)
        soft = targets if targets.is_floating_point() else _one_hot(targets, classes)
        inputs = inputs if inputs.is_floating_point() else inputs.float()
        return torch.lerp(inputs[partner], inputs, share), torch.lerp(soft[partner], soft, share)

    return mix


def beta(alpha: float, draws: Generator, device: torch.device) -> Tensor:
    """One draw from Beta(alpha, alpha), by its quantiles: torch's own sampler takes no generator."""
    table = _beta_quantiles(alpha, device)
    place = torch.rand(1, generator=draws, device=device) * (QUANTILES - 1)
    below = place.long()
    return torch.lerp(table[below], table[below + 1], place - below)


AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {
    "crop": lambda: crop,
    "crop-reflect": lambda: crop_reflect,
    "flip": lambda: flip,
    "mixup": mixup,
    "randaugment": randaugment,
}


def _window(wide: Tensor, shape: torch.Size, draws: Generator) -> Tensor:
    """All windows of a size as a view; one of them is copied for each image."""
    rows, height, width = len(wide), shape[-2], shape[-1]
    windows = wide.unfold(2, height, 1).unfold(3, width, 1)
    place = torch.randint(0, 2 * MARGIN + 1, (2, rows), generator=draws, device=wide.device)
    return windows[_numbers(rows, wide.device), :, place[0], place[1]]


@lru_cache(maxsize=32)
def _numbers(rows: int, device: torch.device) -> Tensor:
    """Made once: a kernel less in every batch."""
    return torch.arange(rows, device=device)


@lru_cache(maxsize=32)
def _mirrored(size: int, device: torch.device) -> Tensor:
    """The pixels of a line with its margins, where the border pixel is not repeated."""
    places = torch.arange(-MARGIN, size + MARGIN).abs()
    return torch.where(places < size, places, 2 * (size - 1) - places).to(device)


@lru_cache(maxsize=32)
def _beta_quantiles(alpha: float, device: torch.device) -> Tensor:
    from scipy.special import betaincinv

    levels = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    return torch.from_numpy(betaincinv(alpha, alpha, levels.numpy())).float().to(device)


def _one_hot(targets: Tensor, classes: int) -> Tensor:
    """Without torch's own check of the labels, which makes the host wait."""
    return (targets.unsqueeze(1) == torch.arange(classes, device=targets.device)).float()


def _want_images(images: Tensor, name: str) -> None:
    if images.ndim != 4:
        raise ValueError(f"{name} takes images (rows, channels, height, width), and these are {tuple(images.shape)}")
