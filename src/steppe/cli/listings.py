"""`steppe methods`, `measures`, `models`, `loggers`: tables of what is registered, here and in other packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from .._util.docstrings import definition, parameter_docs
from .._util.measure_names import MeasureName
from .._util.names import unknown
from .options import command
from .output import Output, UsageError, table, usage_errors

if TYPE_CHECKING:
    from ..measures.estimate import Measure


@dataclass(frozen=True)
class OfMethods:
    """Options of `steppe methods`."""

    method: str | None = field(default=None, metadata={"metavar": "METHOD", "nargs": "?"})
    """one method, in detail"""


@dataclass(frozen=True)
class OfMeasures:
    """Options of `steppe measures`."""

    measure: str | None = field(default=None, metadata={"metavar": "MEASURE", "nargs": "?"})
    """one measure, in detail"""


@dataclass(frozen=True)
class OfModels:
    """Options of `steppe models`."""

    model: str | None = field(default=None, metadata={"metavar": "MODEL", "nargs": "?"})
    """one model, in detail"""


# -- methods ----------------------------------------------------------------------------------------------------------


@command("methods")
def methods(options: OfMethods) -> Output:
    """List the methods with their cost, parameters and papers.

    Examples
    --------
    steppe methods
    steppe methods frob-sam
    steppe methods --json

    """
    import steppe

    from ..methods.registry import METHODS

    if options.method is None:
        rows = [describe_method(name) for name in METHODS]
        heads = ("method", "what it does", "passes", "paper", "parameters")
        cells = ((*(r[key] for key in ("name", "does", "passes", "paper")), _defaults(r["parameters"])) for r in rows)
        shown = table(heads, cells, fold=("what it does", "passes", "parameters"), drop=("parameters", "paper"))
        return Output(
            rows, [shown, "\nPasses are per step, at default options. `steppe methods NAME` shows one method."]
        )
    with usage_errors():
        row = describe_method(options.method)
    lines = [f"{row['name']}: {row['does']}", *([f"paper: {row['paper']}"] if row["paper"] else [])]
    lines += [f"passes per step: {row['passes']}"]
    function = row["name"].replace("-", "_")
    wrap = f"{function}(base" if hasattr(steppe, function) else f"build({row['name']!r}, base"
    lines += [f"in Python: opt = steppe.{wrap}, model=model)"]
    columns = ("parameter", "default", "source and meaning")
    parameters = table(columns, (p.values() for p in row["parameters"]), fold=columns[2:])
    return Output(row, ["\n".join([*lines, f"{row['class']}: {row['definition']}", ""]), parameters])


def describe_method(name: str) -> dict[str, Any]:
    """Return the description of a method, read from its code."""
    from ..methods.registry import METHODS, method

    instance, factory = method(name), METHODS[name]
    sources = factory.parameter_docs()
    parameters = [
        {"name": p.name, "default": _typed(p.default), "source": sources[p.name]}
        for p in factory.__signature__.parameters.values()
    ]
    return {
        "name": name, "does": factory.does, "paper": factory.paper, "passes": factory.usual_passes(),
        "parameters": parameters,
        "class": type(instance).__name__, "definition": definition(type(instance), factory.make),
    }  # fmt: skip


def _defaults(parameters: list[dict[str, Any]]) -> str:
    return " ".join(f"{p['name']}={p['default']}" for p in parameters)


def _typed(default: Any) -> Any:
    """Return a default as a user types it."""
    from ..core.triple import TRIPLES

    return next((name for name, triple in TRIPLES.items() if triple is default), default)


# -- measures ---------------------------------------------------------------------------------------------------------

ABOUT_COSTS = (
    "Costs are passes over the measured samples at default options; a product with the Hessian takes about two. "
    "worst_linf@0.002[m=64,steps=50,rows=test] sets a radius and options: docs/measures.md."
)


@command("measures")
def measures(options: OfMeasures) -> Output:
    """List the measures with their kinds, costs, options and papers.

    Examples
    --------
    steppe measures
    steppe measures worst_linf@0.002
    steppe measures --json

    """
    from ..measures.registration import MEASURES
    from ..measures.registry import measure_by_name

    if options.measure is None:
        rows = [describe_measure(name, one()) for name, one in MEASURES.items()]
        heads = ("measure", "what it is", "kind", "cost", "paper", "options")
        cells = ((r["name"], r["is"], r["kind"], r["cost"], r["paper"], _numbers(r["options"])) for r in rows)
        shown = table(heads, cells, fold=("what it is", "cost", "options"), drop=("options", "paper", "cost"))
        return Output(rows, [shown, f"\n{ABOUT_COSTS}"])
    with usage_errors():
        row = describe_measure(options.measure, measure_by_name(options.measure))
    lines = [f"{row['name']}: {row['is']}", *([f"paper: {row['paper']}"] if row["paper"] else [])]
    lines += [f"kind of estimate: {row['kind']}"]
    lines += [f"cost: {row['cost']} over the measured samples", f"{row['class']}: {row['definition']}", ""]
    shown = table(("option", "default", "meaning"), (o.values() for o in row["options"]), fold=("meaning",))
    return Output(row, ["\n".join(lines), *([shown, ""] if row["options"] else []), ABOUT_COSTS])


def describe_measure(name: str, measure: Measure) -> dict[str, Any]:
    """Return the description of a measure; options and definition are read from its code."""
    from ..measures.registration import MEASURES
    from ..studies.report import definitions

    one = MEASURES[MeasureName.of(name).base]
    layers = [measure]  # the measure, the one that it averages or transforms, and so on
    while hasattr(layers[-1], "measure"):
        layers.append(layers[-1].measure)
    return {
        "name": name, "is": definitions.definition(name), "kind": one.kind, "cost": one.cost,
        "options": list(_options(layers[-1])), "paper": one.paper,
        "class": " of ".join(type(one).__name__ for one in layers),
        "definition": definition(*map(type, reversed(layers))),
    }  # fmt: skip


def _numbers(options: list[dict[str, Any]]) -> str:
    return " ".join(f"{o['name']}={o['default']:g}" for o in options if isinstance(o["default"], (int, float)))


def _options(measure: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a measure with their values; those of its ball one by one."""
    from ..core.ball import Ball

    meanings = parameter_docs(type(measure))
    for f in fields(measure):
        value = getattr(measure, f.name)
        if isinstance(value, Ball):
            yield from _options(value)
        elif f.name != "triple":  # the name of the measure implies it
            yield {"name": f.name, "default": _plain(value), "meaning": meanings.get(f.name, "")}


def _plain(value: Any) -> Any:
    """Return a value as a user writes it in Python: numbers and texts as they are, functions and classes by name."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return repr(value) if is_dataclass(value) and not isinstance(value, type) else value.__name__


# -- models -----------------------------------------------------------------------------------------------------------

IMAGES, CLASSES = (3, 32, 32), 10  # CIFAR-10, for the numbers of parameters
ABOUT_PARAMETERS = (
    "Parameters are for 3 x 32 x 32 images and 10 classes. `--model-options.width 16` sets an option; a model of "
    "your own is --model package.module:factory."
)


@command("models")
def models(options: OfModels) -> Output:
    """List the reference models with their sizes and options.

    Examples
    --------
    steppe models
    steppe models resnet18 --json

    """
    from ..nn.registry import MODELS

    if options.model is not None and options.model not in MODELS:
        raise UsageError(unknown("model", options.model, MODELS))
    rows = [describe_model(name) for name in (MODELS if options.model is None else [options.model])]
    cells = (
        (r["name"], f"{r['parameters']:,}", r["is"], " ".join(f"{k}={v}" for k, v in r["options"].items()), r["paper"])
        for r in rows
    )
    heads = ("model", "parameters", "what it is", "options", "paper")
    sentences = ("what it is", "options", "paper")
    shown = table(heads, cells, right=("parameters",), fold=sentences, drop=("paper", "options"))
    return Output(rows if options.model is None else rows[0], [shown, ABOUT_PARAMETERS])


def describe_model(name: str) -> dict[str, Any]:
    """Return a model with its options and number of parameters; built on the meta device, without memory."""
    import torch

    from ..nn.registry import MODELS, build

    with torch.device("meta"):
        model = build(name, IMAGES, CLASSES)
    count = sum(p.numel() for p in model.parameters())
    one = MODELS[name]
    return {
        "name": name, "is": one.about, "parameters": count, "options": one.options, "paper": one.paper,
        "published": one.published,
    }  # fmt: skip


# -- loggers ----------------------------------------------------------------------------------------------------------


@command("loggers")
def loggers() -> Output:
    """List the loggers of records, and what to install for them.

    Examples
    --------
    steppe loggers

    """
    from .._util.extras import install_line, installed
    from ..training.loggers import LOGGERS

    rows = [{"name": name, "does": one.does, "extra": one.extra} for name, one in LOGGERS.items()]
    needs = ("" if installed(row["extra"]) else install_line(row["extra"]) for row in rows)
    cells = ((row["name"], row["does"].replace("`", ""), need) for row, need in zip(rows, needs, strict=True))
    shown = table(("logger", "where records go", "missing"), cells, fold=("where records go",))
    return Output(rows, [shown, "A logger of your own is --loggers package.module:factory."])
