"""The constants of the corruptions at five severities, from the scripts of Hendrycks & Dietterich (2019).

CIFAR-10-C and CIFAR-100-C have one set of constants, and TinyImageNet-C another, harsher one.
"""

from __future__ import annotations

from collections.abc import Mapping

Constants = tuple[float, ...]

SEVERITIES: Mapping[str, tuple[Constants, ...]] = {
    # the benchmark's fifteen
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),  # standard deviation
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),  # photons of white
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),  # share of the values
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, softness of its edge
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),  # sigma, rounds of moving pixels, how far (1)
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),  # radius, sigma
    "zoom_blur": ((6,), (11,), (15,), (20,), (25,)),  # percent, in steps of one
    "snow": (  # mean and deviation of flakes, their size, least level, streak's radius and sigma, what is not whitened
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),  # weights of image and frost
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # amount, smoothness
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),  # added to HSV's value
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),  # what is left of it
    "elastic_transform": (  # strength and smoothness of the field, and how far three points move
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),  # pixels left in a line
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),  # quality
    # the four that the authors keep for validation
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),  # standard deviation over level
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),  # sigma
    "spatter": (  # mean and deviation of liquid, its smoothness, least level; weight of water or sigma of mud; 1 is mud
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # factor of HSV's saturation, and what is added
}

TINY_IMAGENET: Mapping[str, tuple[Constants, ...]] = {
    "gaussian_noise": ((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
    "shot_noise": ((250,), (100,), (50,), (30,), (15,)),
    "impulse_noise": ((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 2, 1), (0.7, 1, 2), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": ((6,), (11,), (15,), (20,), (25,)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.3, 0.06),
        (0.1, 0.08, 0.06),
        (0.1, 0.03, 0.03),
        (0.16, 0.03, 0.02),
    ),
    "pixelate": ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
    "jpeg_compression": ((65,), (58,), (50,), (40,), (25,)),
    "speckle_noise": ((0.15,), (0.2,), (0.25,), (0.3,), (0.35,)),
    "gaussian_blur": ((0.5,), (0.75,), (1,), (1.25,), (1.5,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
}

CONSTANTS = {"cifar": SEVERITIES, "tiny-imagenet": TINY_IMAGENET}

NAMES = tuple(SEVERITIES)
MAIN = NAMES[:15]
"""The benchmark's; its authors keep the other four for validation."""
GROUPS = {"all": NAMES, "main": MAIN}
