"""Measures by name, for configurations and command lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._util.names import unknown
from ..core.ball import Ball
from ..core.triple import DETERMINANT, FROBENIUS, TRACE
from .curvature.forms import gauss_newton
from .curvature.questions import Eigenvalue, FrobeniusSquared, LogDeterminant, Trace
from .definitions import DEFINITIONS, MAGNITUDE, RADII
from .estimate import Measure
from .fisher import FisherTrace
from .limits import AverageLimit, CurvatureLimit, GradientNorm, Loss, SlopeLimit
from .relative_flatness import RelativeFlatness
from .universal import ZerothOrder
from .worst_case import OneStep

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
"""The definitions of A modern look stand at the smallest radius of its grid for ResNets; `name@radius` takes others."""


def named_measure(name: str) -> Measure:
    """The measure of that name; "worst_linf@0.002" is a definition of A modern look at another radius."""
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
        raise ValueError(
            f"{name!r} asks for {base} at radius {radius!r}, which has to be a number, 0 or more"
        ) from error


def plan_of(measures: Iterable[str] | Mapping[str, Measure] | str) -> dict[str, Measure]:
    """Measures by name, from names, from a mapping, or from one text with commas."""
    if isinstance(measures, Mapping):
        return dict(measures)
    names = measures.split(",") if isinstance(measures, str) else list(measures)
    nameless = [m for m in names if not isinstance(m, str)]
    if nameless:
        raise TypeError(f"{type(nameless[0]).__name__} comes without a name: pass a mapping, {{'my name': measure}}")
    return {name.strip(): named_measure(name.strip()) for name in names}
