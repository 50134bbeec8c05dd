"""Measures by name, and the twelve definitions of sharpness of A modern look with the radii of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from .._util.names import unknown
from ..core.ball import Ball
from ..core.metric import Elementwise, Metric
from ..core.triple import DETERMINANT, FROBENIUS, TRACE, gaussian
from .curvature.forms import gauss_newton
from .curvature.measures import Eigenvalue, FrobeniusSquared, LogDeterminant, RelativeFlatness, Trace
from .estimate import Measure
from .fisher import FisherTrace
from .input_curvature import InputCurvature
from .sharpness import (
    AverageCase,
    AverageLimit,
    CurvatureLimit,
    GradientNorm,
    Loss,
    OneStep,
    OnNormalisedLogits,
    PerBatch,
    SlopeLimit,
    box,
)
from .universal import ZerothOrder
from .worst_case import WorstCase

MAGNITUDE = Elementwise(0.0, everywhere=True)  # c = |w| for every weight, as the paper defines adaptive sharpness

Definition = Callable[[float], Measure]


def _definitions(metric: Metric | None) -> dict[str, Definition]:
    return {
        "avg_l2": lambda rho: AverageCase(rho, gaussian, metric),
        "avg_linf": lambda rho: AverageCase(rho, box, metric),
        "worst_l2": lambda rho: WorstCase(Ball(rho, metric)),
        "worst_linf": lambda rho: WorstCase(Ball(rho, metric, inf)),
    }


def _per_batch(make: Definition) -> Definition:
    return lambda rho: PerBatch(make(rho))


def _normalised(make: Definition) -> Definition:
    return lambda rho: PerBatch(OnNormalisedLogits(make(rho)))


DEFINITIONS: Mapping[str, Definition] = {
    **{name: _per_batch(make) for name, make in _definitions(None).items()},
    **{f"adaptive_{name}": _per_batch(make) for name, make in _definitions(MAGNITUDE).items()},
    **{f"adaptive_{name}_normalised": _normalised(make) for name, make in _definitions(MAGNITUDE).items()},
}
"""Functions of the radius; m is the batch size of the objective (256 of 2048 points in the paper)."""


def _doubled(first: float, n: int) -> Sequence[float]:
    return tuple(first * 2**i for i in range(n))


def _adaptive_linf_grids(worst: float, average: float) -> dict[str, Sequence[float]]:
    """Tables 1 and 2: three radii, the same with and without normalised logits."""
    firsts = {"adaptive_worst_linf": worst, "adaptive_avg_linf": average}
    return {name + suffix: _doubled(first, 3) for suffix in ("", "_normalised") for name, first in firsts.items()}


def _all_grids(*firsts: float) -> dict[str, Sequence[float]]:
    """Tables 3 and 4: four radii per definition, in the order of `DEFINITIONS`."""
    return {name: _doubled(first, 4) for name, first in zip(DEFINITIONS, firsts, strict=True)}


RADII: Mapping[str, Mapping[str, Sequence[float]]] = {
    "imagenet": _adaptive_linf_grids(0.001, 0.05),
    "imagenet-21k": _adaptive_linf_grids(0.001, 0.05),
    "clip": _adaptive_linf_grids(0.001, 0.001),
    "bert-mnli": _adaptive_linf_grids(0.0005, 0.1),
    # avg_l2, avg_linf, worst_l2, worst_linf: plain, adaptive, adaptive with normalised logits
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

DEFAULT_RADII = {name: grid[0] for name, grid in RADII["resnet18-cifar10"].items()}

MEASURES: Mapping[str, Measure] = {
    "loss": Loss(),
    "grad_norm": GradientNorm(),
    "lambda_max": Eigenvalue(),
    "lambda_min": Eigenvalue(end="bottom"),
    "trace": Trace(),
    "frobenius_squared": FrobeniusSquared(),
    "log_determinant": LogDeterminant(),
    "adaptive_lambda_max": Eigenvalue(metric=MAGNITUDE),
    "adaptive_trace": Trace(metric=MAGNITUDE),
    "adaptive_frobenius_squared": FrobeniusSquared(metric=MAGNITUDE),
    "gauss_newton_lambda_max": Eigenvalue(form=gauss_newton),
    "gauss_newton_trace": Trace(form=gauss_newton),
    "gauss_newton_frobenius_squared": FrobeniusSquared(form=gauss_newton),
    "fisher_trace": FisherTrace(),
    "input_trace": InputCurvature(1),
    "input_curvature": InputCurvature(),
    "relative_flatness": RelativeFlatness(),
    "sam_sharpness": OneStep(Ball(0.05)),  # Foret et al. 2021, section 3.1
    "adaptive_slope_limit": SlopeLimit(Ball(1.0, MAGNITUDE)),
    "adaptive_curvature_limit": CurvatureLimit(Ball(1.0, MAGNITUDE)),
    "adaptive_average_limit": AverageLimit(1.0, MAGNITUDE),
    "zeroth_trace": ZerothOrder(TRACE),
    "zeroth_frobenius_squared": ZerothOrder(FROBENIUS),
    "zeroth_determinant": ZerothOrder(DETERMINANT, 1.0),  # universal-SAM paper, appendix O
    **{name: make(DEFAULT_RADII[name]) for name, make in DEFINITIONS.items()},
}
"""Definitions of A modern look have the smallest radius of its grid for ResNets; `name@radius` takes another one."""


def measure_by_name(name: str) -> Measure:
    """The measure with a name; "worst_linf@0.002" is a definition of A modern look at another radius."""
    base, at, radius = name.partition("@")
    if not at:
        if name not in MEASURES:
            raise ValueError(unknown("measure", name, MEASURES))
        return MEASURES[name]
    if base not in DEFINITIONS:
        raise ValueError(unknown("measure with a radius", base, DEFINITIONS))
    try:
        return DEFINITIONS[base](float(radius))
    except ValueError as error:
        raise ValueError(f"{name!r} names {base} at radius {radius!r}, which has to be a number, 0 or more") from error


def resolve_measures(measures: Iterable[str] | Mapping[str, Measure] | str) -> dict[str, Measure]:
    """Measures by name, from a list of names, a comma-separated string, or a mapping."""
    if isinstance(measures, Mapping):
        return dict(measures)
    names = measures.split(",") if isinstance(measures, str) else list(measures)
    unnamed = [m for m in names if not isinstance(m, str)]
    if unnamed:
        raise TypeError(f"{type(unnamed[0]).__name__} has no name: pass a mapping, {{'my name': measure}}")
    return {name.strip(): measure_by_name(name.strip()) for name in names}
