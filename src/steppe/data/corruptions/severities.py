"""Constants of each corruption at severities 1 to 5: those of CIFAR-10-C (Hendrycks & Dietterich 2019).

They come from the authors' script for 32 x 32 pixels (github.com/hendrycks/robustness, make_cifar_c.py), weaker than
ImageNet-C's. Lengths are in pixels, elastic_transform's in sides of the image; levels are shares of white.
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
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),  # sigma, rounds of moving pixels by one
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

NAMES = tuple(SEVERITIES)
