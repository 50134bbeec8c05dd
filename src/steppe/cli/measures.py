"""`steppe measures`: every measure with its kind of estimate, its cost, its options and its paper."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from .._util.measure_names import MeasureName
from ..methods.about import FORET, TAHMASEBI
from .errors import usage_errors
from .methods import comments
from .options import Command
from .output import Output, add_row, table

if TYPE_CHECKING:
    from ..measures.estimate import Measure

ANDRIUSHCHENKO, PETZKA = "Andriushchenko et al. 2023", "Petzka et al. 2021"
PRODUCTS, ASCENT = "up to 200 products", "up to 42 gradients"  # at default options

ABOUT: Mapping[str, tuple[str, str, str]] = {  # kind of estimate, cost in passes over the rows, paper
    "loss": ("exact", "1 loss", ""),
    "grad_norm": ("exact", "1 gradient", ""),
    "lambda_max": ("lower bound", PRODUCTS, ""),
    "lambda_min": ("upper bound", PRODUCTS, ""),
    "trace": ("unbiased", PRODUCTS, ""),
    "frobenius_squared": ("unbiased", PRODUCTS, ""),
    "log_determinant": ("plug-in", "up to 1000 products", ""),
    "adaptive_lambda_max": ("lower bound", PRODUCTS, ANDRIUSHCHENKO),
    "adaptive_trace": ("unbiased", PRODUCTS, ANDRIUSHCHENKO),
    "adaptive_frobenius_squared": ("unbiased", PRODUCTS, ""),
    "gauss_newton_lambda_max": ("lower bound", PRODUCTS, ""),
    "gauss_newton_trace": ("unbiased", PRODUCTS, ""),
    "gauss_newton_frobenius_squared": ("unbiased", PRODUCTS, ""),
    "fisher_trace": ("unbiased", "1 gradient", ""),
    "input_trace": ("unbiased", "1 gradient and 10 products", ""),
    "input_curvature": ("unbiased", "1 gradient and 10 products", "Garg and Roy 2023"),
    "fisher_input_correlation": ("plug-in", "2 gradients and 10 products", "Lu et al. 2024"),
    "relative_flatness": ("unbiased", "up to 100 products", PETZKA),
    "sam_sharpness": ("exact", "1 gradient and 1 loss", FORET),
    "adaptive_slope_limit": ("exact", "1 gradient", ANDRIUSHCHENKO),
    "adaptive_curvature_limit": ("lower bound", PRODUCTS, ANDRIUSHCHENKO),
    "adaptive_average_limit": ("unbiased", PRODUCTS, ANDRIUSHCHENKO),
    "zeroth_trace": ("unbiased", "100 losses", TAHMASEBI),
    "zeroth_frobenius_squared": ("plug-in", "100 losses", TAHMASEBI),
    "zeroth_determinant": ("plug-in", "100 losses", TAHMASEBI),
    **{
        f"{scale}{case}_{norm}{logits}": (kind, cost, ANDRIUSHCHENKO)
        for scale, logits in (("", ""), ("adaptive_", ""), ("adaptive_", "_normalised"))
        for case, kind, cost in (("avg", "unbiased", "101 losses"), ("worst", "lower bound", ASCENT))
        for norm in ("l2", "linf")
    },
}
FOOT = (
    "Costs are passes over the measured rows at default options; a product with the Hessian costs about two gradients. "
    "worst_linf@0.002[m=64,steps=50,rows=test] sets the radius of the last twelve, and options: docs/measures.md."
)


@dataclass(frozen=True)
class Which:
    """Options of `steppe measures`."""

    measure: str | None = field(default=None, metadata={"metavar": "MEASURE", "nargs": "?"})
    """one measure, in detail"""


def run(which: Which) -> Output:
    """All measures in a table, or one with its options."""
    from ..measures.registry import MEASURES, measure_by_name

    if which.measure is None:
        rows = [described(name, made) for name, made in MEASURES.items()]
        shown = table("measure", "kind", "cost", "options", "what it is", "paper", fold=("options", "what it is"))
        for row in rows:
            simple = (o for o in row["options"] if isinstance(o["default"], (int, float)))
            options = " ".join(f"{o['name']}={o['default']:g}" for o in simple)
            add_row(shown, row["name"], row["kind"], row["cost"], options, row["is"], row["paper"])
        return Output(rows, [shown, FOOT])
    with usage_errors():
        row = described(which.measure, measure_by_name(which.measure))
    lines = [f"{row['name']}: {row['is']}", f"paper: {row['paper'] or 'none'}", f"kind of estimate: {row['kind']}"]
    lines += [f"cost: {row['cost']} over the measured rows", f"{row['class']}: {row['definition']}", ""]
    options = table("option", "default", "meaning", fold=("meaning",))
    for option in row["options"]:
        add_row(options, option["name"], option["default"], option["meaning"])
    return Output(row, ["\n".join(lines), *([options] if row["options"] else []), FOOT])


def described(name: str, made: Measure) -> dict[str, Any]:
    """The description of a measure; options and definition are read from its code."""
    from ..studies.report.definitions import definition

    kind, cost, paper = ABOUT[MeasureName.of(name).base]
    layers = list(_layers(made))
    definitions = [(inspect.getdoc(type(one)) or "").partition("\n\nParameters\n")[0] for one in reversed(layers)]
    return {
        "name": name, "is": definition(name), "kind": kind, "cost": cost, "options": list(_options(layers[-1])),
        "paper": paper, "class": " of ".join(type(one).__name__ for one in layers),
        "definition": " ".join(" ".join(definitions).split()),
    }  # fmt: skip


def _layers(made: Any) -> Iterator[Any]:
    """A measure, the measure that it averages or transforms, and so on."""
    yield made
    if hasattr(made, "measure"):
        yield from _layers(made.measure)


def _options(measure: Any) -> Iterator[dict[str, Any]]:
    """The fields of a measure with their values; those of its ball one by one."""
    from ..core.ball import Ball

    meanings = comments(type(measure))
    for f in fields(measure):
        value = getattr(measure, f.name)
        if isinstance(value, Ball):
            yield from _options(value)
        elif f.name != "triple":  # the name of the measure implies it
            yield {"name": f.name, "default": _plain(value), "meaning": meanings.get(f.name, "")}


def _plain(value: Any) -> Any:
    """A value as a user writes it in Python: numbers and texts as they are, functions and classes by name."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return repr(value) if is_dataclass(value) and not isinstance(value, type) else value.__name__


COMMANDS = {
    "measures": Command(
        "measures",
        "List the measures with their kinds, costs, options and papers.",
        (Which,),
        run,
        ["steppe measures", "steppe measures worst_linf@0.002", "steppe measures --json"],
    )
}
