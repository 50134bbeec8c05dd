"""The twelve definitions of sharpness of A modern look, with the radii at which the paper measures them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from ..core.ball import Ball
from ..core.metric import Elementwise
from ..core.triple import gaussian
from .average_case import AverageCase, box
from .combinators import OnNormalisedLogits, PerBatch
from .estimate import Measure
from .worst_case import WorstCase

MAGNITUDE = Elementwise(0.0, everywhere=True)  # c = |w| for every weight, as the paper defines adaptive sharpness

Definition = Callable[[float], Measure]


def _standard() -> dict[str, Definition]:
    return {
        "avg_l2": lambda rho: AverageCase(rho, gaussian),
        "avg_linf": lambda rho: AverageCase(rho, box),
        "worst_l2": lambda rho: WorstCase(Ball(rho)),
        "worst_linf": lambda rho: WorstCase(Ball(rho, None, inf)),
    }


def _adaptive() -> dict[str, Definition]:
    return {
        "avg_l2": lambda rho: AverageCase(rho, gaussian, MAGNITUDE),
        "avg_linf": lambda rho: AverageCase(rho, box, MAGNITUDE),
        "worst_l2": lambda rho: WorstCase(Ball(rho, MAGNITUDE)),
        "worst_linf": lambda rho: WorstCase(Ball(rho, MAGNITUDE, inf)),
    }


def _per_batch(make: Definition) -> Definition:
    return lambda rho: PerBatch(make(rho))


def _normalised(make: Definition) -> Definition:
    return lambda rho: PerBatch(OnNormalisedLogits(make(rho)))


DEFINITIONS: Mapping[str, Definition] = {
    **{name: _per_batch(make) for name, make in _standard().items()},
    **{f"adaptive_{name}": _per_batch(make) for name, make in _adaptive().items()},
    **{f"adaptive_{name}_normalised": _normalised(make) for name, make in _adaptive().items()},
}
"""Each a function of the radius; m is the batch size of the objective (256 of 2048 points in the paper)."""


def _doubling(first: float, n: int = 4) -> Sequence[float]:
    return tuple(first * 2**i for i in range(n))


def _grids(normalised: Sequence[str], *rows: tuple[str, float]) -> dict[str, Sequence[float]]:
    """Radii that double from the first; rows of Tables 1 and 2 hold with and without normalised logits."""
    grids = {name: _doubling(first, 3 if normalised else 4) for name, first in rows}
    return grids | {f"{name}_normalised": grids[name] for name in normalised}


_INF = ("adaptive_worst_linf", "adaptive_avg_linf")

RADII: Mapping[str, Mapping[str, Sequence[float]]] = {
    "imagenet": _grids(_INF, ("adaptive_worst_linf", 0.001), ("adaptive_avg_linf", 0.05)),
    "imagenet-21k": _grids(_INF, ("adaptive_worst_linf", 0.001), ("adaptive_avg_linf", 0.05)),
    "clip": _grids(_INF, ("adaptive_worst_linf", 0.001), ("adaptive_avg_linf", 0.001)),
    "bert-mnli": _grids(_INF, ("adaptive_worst_linf", 0.0005), ("adaptive_avg_linf", 0.1)),
    "resnet18-cifar10": _grids(
        (),
        ("avg_l2", 0.05), ("worst_l2", 0.25), ("avg_linf", 0.1), ("worst_linf", 0.0005),
        ("adaptive_avg_l2", 0.05), ("adaptive_worst_l2", 0.25),
        ("adaptive_avg_linf", 0.1), ("adaptive_worst_linf", 0.001),
        ("adaptive_avg_l2_normalised", 0.05), ("adaptive_worst_l2_normalised", 0.25),
        ("adaptive_avg_linf_normalised", 0.1), ("adaptive_worst_linf_normalised", 0.001),
    ),
    "vit-cifar10": _grids(
        (),
        ("avg_l2", 0.005), ("worst_l2", 0.025), ("avg_linf", 0.01), ("worst_linf", 0.00001),
        ("adaptive_avg_l2", 0.1), ("adaptive_worst_l2", 0.5),
        ("adaptive_avg_linf", 0.1), ("adaptive_worst_linf", 0.0005),
        ("adaptive_avg_l2_normalised", 0.1), ("adaptive_worst_l2_normalised", 0.25),
        ("adaptive_avg_linf_normalised", 0.1), ("adaptive_worst_linf_normalised", 0.0005),
    ),
}  # fmt: skip
"""The grids of the paper's Tables 1 to 4, by setting and definition."""
