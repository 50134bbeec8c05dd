"""The twelve definitions of sharpness of A modern look (Andriushchenko et al. 2023), with the radii of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from ..core.ball import Ball
from ..core.metric import Metric
from ..core.triple import gaussian
from .combinators import OnNormalisedLogits, PerBatch
from .estimate import Measure
from .registration import ANDRIUSHCHENKO, MAGNITUDE, register
from .sharpness import AverageCase, box
from .worst_case import WorstCase

CASES = ("avg_l2", "avg_linf", "worst_l2", "worst_linf")
FORMS: Mapping[str, Mapping[str, Any]] = {  # of every case: plain, adaptive, and adaptive with normalised logits
    "{}": {},
    "adaptive_{}": {"metric": MAGNITUDE},
    "adaptive_{}_normalised": {"metric": MAGNITUDE, "normalised": True},
}


def _doubled(first: float, n: int) -> Sequence[float]:
    return tuple(first * 2**i for i in range(n))


def _adaptive_linf_grids(worst: float, average: float) -> dict[str, Sequence[float]]:
    """Tables 1 and 2: three radii, the same with and without normalised logits."""
    firsts = {"adaptive_worst_linf": worst, "adaptive_avg_linf": average}
    return {name + suffix: _doubled(first, 3) for suffix in ("", "_normalised") for name, first in firsts.items()}


def _all_grids(*firsts: float) -> dict[str, Sequence[float]]:
    """Tables 3 and 4: four radii of every case in every form."""
    names = (form.format(case) for form in FORMS for case in CASES)
    return {name: _doubled(first, 4) for name, first in zip(names, firsts, strict=True)}


RADII: Mapping[str, Mapping[str, Sequence[float]]] = {
    "imagenet": _adaptive_linf_grids(0.001, 0.05),
    "imagenet-21k": _adaptive_linf_grids(0.001, 0.05),
    "clip": _adaptive_linf_grids(0.001, 0.001),
    "bert-mnli": _adaptive_linf_grids(0.0005, 0.1),
    "resnet18-cifar10": _all_grids(
        0.05, 0.1, 0.25, 0.0005,
        0.05, 0.1, 0.25, 0.001,
        0.05, 0.1, 0.25, 0.001,
    ),
    "vit-cifar10": _all_grids(
        0.005, 0.01, 0.025, 0.00001,
        0.1, 0.1, 0.5, 0.0005,
        0.1, 0.1, 0.25, 0.0005,
    ),
}  # fmt: skip
"""The first radius and its doubles, as in the paper's Tables 1 to 4, by setting and definition."""


def _others(case: str) -> dict[str, Mapping[str, Any]]:
    """The other forms of a case; without a radius in the name they have the smallest one of the grid for ResNets."""
    forms = {form.format(case): options for form, options in FORMS.items() if options}
    return {name: {**options, "rho": RADII["resnet18-cifar10"][name][0]} for name, options in forms.items()}


def _per_batch(measure: Measure, normalised: bool) -> PerBatch:
    return PerBatch(OnNormalisedLogits(measure) if normalised else measure)


@register(
    "avg_l2", kind="unbiased", cost="101 losses", paper=ANDRIUSHCHENKO, variants=_others("avg_l2"),
    label="average-case sharpness, l2 noise", does="the mean rise of the loss under Gaussian noise in the weights",
)  # fmt: skip
def avg_l2(rho: float = 0.05, metric: Metric | None = None, normalised: bool = False) -> PerBatch:
    return _per_batch(AverageCase(rho, gaussian, metric), normalised)


@register(
    "avg_linf", kind="unbiased", cost="101 losses", paper=ANDRIUSHCHENKO, variants=_others("avg_linf"),
    label="average-case sharpness, box noise",
    does="the mean rise of the loss under uniform noise in a box around the weights",
)  # fmt: skip
def avg_linf(rho: float = 0.1, metric: Metric | None = None, normalised: bool = False) -> PerBatch:
    return _per_batch(AverageCase(rho, box, metric), normalised)


@register(
    "worst_l2", kind="lower bound", cost="up to 42 gradients", paper=ANDRIUSHCHENKO, variants=_others("worst_l2"),
    label="worst-case sharpness, l2 ball",
    does="the largest rise of the loss that ascent finds in a ball around the weights",
)  # fmt: skip
def worst_l2(rho: float = 0.25, metric: Metric | None = None, normalised: bool = False) -> PerBatch:
    return _per_batch(WorstCase(Ball(rho, metric)), normalised)


@register(
    "worst_linf", kind="lower bound", cost="up to 42 gradients", paper=ANDRIUSHCHENKO, variants=_others("worst_linf"),
    label="worst-case sharpness, l∞ box",
    does="the largest rise of the loss that ascent finds in a box around the weights",
)  # fmt: skip
def worst_linf(rho: float = 0.0005, metric: Metric | None = None, normalised: bool = False) -> PerBatch:
    return _per_batch(WorstCase(Ball(rho, metric, inf)), normalised)


DEFINITIONS: Mapping[str, Callable[[float], PerBatch]] = {
    form.format(case.__name__): partial(case, **options)
    for form, options in FORMS.items()
    for case in (avg_l2, avg_linf, worst_l2, worst_linf)
}
"""Functions of the radius; m is the batch size of the objective (256 of 2048 points in the paper)."""
