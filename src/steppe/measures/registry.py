"""Measures by name, and the twelve definitions of sharpness of A modern look with the radii of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import inf
from typing import Any, get_args

from .._util.measure_names import MeasureName, canonical_number, split_at_commas
from .._util.names import unknown
from ..core.arguments import check_instance, described
from ..core.ball import Ball
from ..core.metric import Elementwise, Metric
from ..core.triple import DETERMINANT, FROBENIUS, TRACE, gaussian
from .combinators import OnData, OnNormalisedLogits, PerBatch, Rows
from .curvature.forms import gauss_newton
from .curvature.measures import Eigenvalue, FrobeniusSquared, LogDeterminant, RelativeFlatness, Trace
from .estimate import Measure
from .fisher import FisherTrace
from .input_curvature import FisherInputCorrelation, InputCurvature
from .precision import Precision
from .sharpness import AverageCase, AverageLimit, CurvatureLimit, GradientNorm, Loss, OneStep, SlopeLimit, box
from .universal import ZerothOrder
from .worst_case import AscentRule, AutoPGD, PowerAscent, ProjectedAscent, Start, WorstCase

MAGNITUDE = Elementwise(0.0, everywhere=True)  # c = |w| for every weight, as the paper defines adaptive sharpness

Definition = Callable[[float], Measure]
CASES: Mapping[str, Callable[[float, Metric | None], Measure]] = {
    "avg_l2": lambda rho, metric: AverageCase(rho, gaussian, metric),
    "avg_linf": lambda rho, metric: AverageCase(rho, box, metric),
    "worst_l2": lambda rho, metric: WorstCase(Ball(rho, metric)),
    "worst_linf": lambda rho, metric: WorstCase(Ball(rho, metric, inf)),
}


def _definition(case: str, metric: Metric | None = None, normalised: bool = False) -> Definition:
    def make(rho: float) -> Measure:
        measure = CASES[case](rho, metric)
        return PerBatch(OnNormalisedLogits(measure) if normalised else measure)

    return make


DEFINITIONS: Mapping[str, Definition] = {
    **{case: _definition(case) for case in CASES},
    **{f"adaptive_{case}": _definition(case, MAGNITUDE) for case in CASES},
    **{f"adaptive_{case}_normalised": _definition(case, MAGNITUDE, True) for case in CASES},
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
    "fisher_input_correlation": FisherInputCorrelation(),
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


DATA_OPTIONS = {f.name for f in fields(OnData)} - {"measure"}
CLIMBS: Mapping[str, AscentRule] = {"power": PowerAscent(), "auto-pgd": AutoPGD(), "pgd": ProjectedAscent()}
CHOICES: Mapping[str, Mapping[str, Any]] = {"climb": CLIMBS} | {
    name: {text: text for text in get_args(kind)}
    for name, kind in {"rows": Rows, "precision": Precision, "start": Start}.items()
}
NOT_OPTIONS = ("rho", "variance")  # the radius is written @RADIUS; the variance follows from the law
ALL = "all"  # in the place of a name: every definition of a paper's grid


def measure_by_name(name: str) -> Measure:
    """The measure with a name.

    Parameters
    ----------
    name
        A name in `MEASURES`, with a radius and options if it takes them.

    Examples
    --------
    >>> steppe.measures.measure_by_name("avg_l2@0.002[count=50]").count
    50

    """
    measures = resolve_measures([name])
    if len(measures) > 1:
        raise ValueError(f"{name!r} is {len(measures)} measures: {', '.join(measures)}. Name one of them")
    return next(iter(measures.values()))


def resolve_measures(measures: Iterable[str] | Mapping[str, Measure] | str) -> dict[str, Measure]:
    """Measures by their canonical names, from a list of names, a comma-separated string, or a mapping.

    `NAME[@RADIUS][KEY=VALUE,...]`: a definition of A modern look at a radius, with options of the measure's class and
    of the data (`OnData`). `NAME@GRID` is a definition at each radius of a paper's grid, `all@GRID` every definition of
    it. In a canonical name options are sorted, numbers have the fewest digits, and options of the class that have their
    default are left out.
    """
    if isinstance(measures, Mapping):
        for name, one in measures.items():
            _check_measure(one, f"the measure {name!r}")
        return dict(measures)
    if isinstance(measures, type) or not isinstance(measures, Iterable):
        raise TypeError(f"measures are names, or a mapping of names to measures, not {described(measures)}: {NAMED}")
    names = split_at_commas(measures) if isinstance(measures, str) else list(measures)
    unnamed = [m for m in names if not isinstance(m, str)]
    if unnamed:
        raise TypeError(f"{described(unnamed[0])} has no name: {NAMED}")
    return {str(one): made for name in names for one, made in _resolved(MeasureName.of(name))}


NAMED = "pass a mapping, {'my name': measure}"


def _check_measure(one: Any, what: str) -> None:
    check_instance(what, one)
    if not hasattr(one, "running"):
        raise TypeError(f"{what} is a Measure such as Loss(), not {described(one)}; names are given as a list")


def canonical_names(names: Iterable[str], usual: Mapping[str, str] | None = None) -> list[str]:
    """The canonical names of measures without options that are usual; grids are expanded, equal requests are one."""
    written = map(MeasureName.of, resolve_measures(list(names)))
    left_out = (usual or {}).items()
    kept = (replace(n, options={k: v for k, v in n.options.items() if (k, v) not in left_out}) for n in written)
    return list(dict.fromkeys(map(str, kept)))


def _resolved(name: MeasureName) -> Iterator[tuple[MeasureName, Measure]]:
    grid = RADII.get(name.radius or "")
    if grid is None:
        if name.base == ALL:
            raise ValueError(f"{ALL}@GRID takes the name of a grid: {unknown('grid', name.radius or '', RADII)}")
        yield _single(name)
        return
    if name.base not in (ALL, *grid):
        raise ValueError(unknown(f"definition in the grid {name.radius}", name.base, (ALL, *grid)))
    bases = list(grid) if name.base == ALL else [name.base]
    accepted = {base: {*DATA_OPTIONS, *_options(MEASURES[base])} for base in bases}
    for key in name.options:
        if not any(key in options for options in accepted.values()):
            raise ValueError(unknown(f"option of {name.base}", key, set().union(*accepted.values())))
    for base in bases:  # each of all definitions takes the options that it has
        options = {k: v for k, v in name.options.items() if k in accepted[base]}
        for radius in grid[base]:
            yield _single(MeasureName(base, str(radius), options))


def _single(name: MeasureName) -> tuple[MeasureName, Measure]:
    """A measure and its canonical name."""
    base, radius = name.base, name.radius
    if radius is None:
        if base not in MEASURES:
            raise ValueError(unknown("measure", base, MEASURES))
        measure = MEASURES[base]
    else:
        if base not in DEFINITIONS:
            raise ValueError(unknown("measure with a radius", base, DEFINITIONS))
        number = canonical_number(radius)
        try:
            if number is None:
                raise ValueError
            measure = DEFINITIONS[base](float(number))
        except ValueError as error:
            at = MeasureName(base, radius)
            grids = unknown("grid", radius, RADII)
            raise ValueError(
                f"{str(at)!r} names {base} at radius {radius!r}, which has to be a number, 0 or more, or the name of a "
                f"paper's grid: {grids}"
            ) from error
        radius = number
    if not name.options:
        return MeasureName(base, radius), measure
    try:
        own, data = _values(measure, name)
    except ValueError as error:
        raise ValueError(f"{str(name)!r}: {error}") from error
    defaults = _options(measure)
    spelled = {k: name.options[k] if isinstance(v, str) or k == "climb" else str(canonical_number(v))
               for k, v in (own | data).items() if k in data or v != defaults[k]}  # fmt: skip
    measure = _with(measure, own)
    return MeasureName(base, radius, spelled), OnData(measure, **data) if data else measure


def _values(measure: Measure, name: MeasureName) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a name's options: those of the measure's class, and those of the data."""
    defaults = _options(measure)
    own: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for key, text in name.options.items():
        if key == "m" and not isinstance(measure, PerBatch):
            raise ValueError(f"m is the batch size of means over batches, and {name.base} is of all rows together")
        if key not in {*defaults, *DATA_OPTIONS}:
            raise ValueError(unknown(f"option of {name.base}", key, {*defaults, *DATA_OPTIONS}))
        if key in CHOICES and text not in CHOICES[key]:
            raise ValueError(unknown(f"value of {key}", text, CHOICES[key]))
        values = data if key in DATA_OPTIONS else own
        values[key] = CHOICES[key][text] if key in CHOICES else _number(key, text, type(defaults.get(key, 1)))
    return own, data


def _number(key: str, text: str, kind: type) -> float:
    number = canonical_number(text)
    value = float(number) if number is not None else 0.0
    if not 0 < value < inf or (kind is int and value != int(value)):
        raise ValueError(f"{key} has to be {'a whole number, 1 or more' if kind is int else 'above 0'}, not {text!r}")
    return kind(value)  # type: ignore[no-any-return]


def _innermost(measure: Any) -> Any:
    return _innermost(measure.measure) if hasattr(measure, "measure") else measure


def _options(measure: Measure) -> dict[str, Any]:
    """The options of a measure's class that a name can set, with their values."""
    inner = _innermost(measure)
    values = {f.name: getattr(inner, f.name) for f in fields(inner) if f.name not in NOT_OPTIONS}
    return {name: value for name, value in values.items() if name in CHOICES or type(value) in (int, float)}


def _with(measure: Any, options: Mapping[str, Any]) -> Any:
    """The measure with options of its innermost class."""
    inner = {"measure": _with(measure.measure, options)} if hasattr(measure, "measure") else options
    return replace(measure, **inner)
