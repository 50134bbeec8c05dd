"""Measures by name: `NAME[@RADIUS][KEY=VALUE,...]`, and what radii, grids and options mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

from .._util.measure_names import MeasureName, canonical_number, split_at_commas
from .._util.names import unknown
from ..core.arguments import check_instance, described
from .combinators import OnData, PerBatch, Rows
from .estimate import Measure
from .modern_look import CASES, RADII
from .registration import MEASURES
from .session import Precision
from .worst_case import AscentRule, AutoPGD, PowerAscent, ProjectedAscent, Start

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
        one = next(iter(measures))
        raise ValueError(f"{name!r} stands for {len(measures)} measures: name one of them, such as {one}")
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
            what = f"the measure {name!r}"
            check_instance(what, one)
            if not hasattr(one, "running"):
                raise TypeError(f"{what} is a Measure such as Loss(), not {described(one)}; names are given as a list")
        return dict(measures)
    if isinstance(measures, type) or not isinstance(measures, Iterable):
        raise TypeError(f"measures are names, or a mapping of names to measures, not {described(measures)}: {NAMED}")
    names = split_at_commas(measures) if isinstance(measures, str) else list(measures)
    unnamed = [m for m in names if not isinstance(m, str)]
    if unnamed:
        raise TypeError(f"{described(unnamed[0])} has no name: {NAMED}")
    found: dict[str, Measure] = {}
    for name in names:
        if name in MEASURES:
            found[name] = MEASURES[name].make()
        else:
            found |= {str(one): made for one, made in _resolved(MeasureName.of(name))}
    return found


NAMED = "pass a mapping, {'my name': measure}"


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
    accepted = {base: {*DATA_OPTIONS, *_options(MEASURES[base]())} for base in bases}
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
    if base not in MEASURES:
        raise ValueError(unknown("measure", base, MEASURES))
    if radius is None:
        measure = MEASURES[base]()
    else:
        if not MEASURES[base].has_radius:
            known = ", ".join(CASES)
            raise ValueError(f"there is no measure {base!r} with a radius: write {base}, or one of {known} with it")
        number = canonical_number(radius)
        try:
            if number is None:
                raise ValueError
            measure = MEASURES[base](float(number))
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
    defaults = _options(measure)
    try:
        own, data = _values(measure, name, defaults)
        measure = _with(measure, own)
        measure = OnData(measure, **data) if data else measure
    except ValueError as error:
        raise ValueError(f"{str(name)!r}: {error}") from error
    spelled = {k: name.options[k] if k in CHOICES else str(canonical_number(v))
               for k, v in (own | data).items() if k in data or v != defaults[k]}  # fmt: skip
    return MeasureName(base, radius, spelled), measure


def _values(measure: Measure, name: MeasureName, defaults: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a name's options: those of the measure's class, and those of the data."""
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
        if key in CHOICES:
            values[key] = CHOICES[key][text]
            continue
        number = canonical_number(text)
        value = text if number is None else float(number)
        whole = isinstance(value, float) and value.is_integer() and type(defaults.get(key, 1)) is int
        values[key] = int(value) if whole else value  # the class checks it
    return own, data


def _innermost(measure: Any) -> Any:
    return _innermost(measure.measure) if hasattr(measure, "measure") else measure


def _options(measure: Measure) -> dict[str, Any]:
    """The options of a measure's class that a name can set, with their values."""
    inner = _innermost(measure)
    own = fields(inner) if is_dataclass(inner) else ()
    values = {f.name: getattr(inner, f.name) for f in own if f.name not in NOT_OPTIONS}
    return {name: value for name, value in values.items() if name in CHOICES or type(value) in (int, float)}


def _with(measure: Any, options: Mapping[str, Any]) -> Any:
    """The measure with options of its innermost class."""
    inner = {"measure": _with(measure.measure, options)} if hasattr(measure, "measure") else options
    return replace(measure, **inner)
