"""`steppe methods`: every method with its cost, its parameters and its paper."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..methods.about import ABOUT
from .errors import usage_errors
from .options import Command
from .output import Output, add_row, table

if TYPE_CHECKING:
    from ..core.probe import Method

STEPS = 1000  # steps over which passes are counted: more than any default period


@dataclass(frozen=True)
class Which:
    """Options of `steppe methods`."""

    method: str | None = field(default=None, metadata={"metavar": "METHOD", "nargs": "?"})
    """one method, in detail"""


def run(which: Which) -> Output:
    """Return all methods in a table, or one with its parameters and the sources of their defaults."""
    from ..methods.registry import METHODS, method

    if which.method is None:
        rows = {name: described(name, METHODS[name], method(name)) for name in METHODS}
        shown = table("method", "passes", "parameters", "what it does", "paper", fold=("parameters", "what it does"))
        for name, row in rows.items():
            parameters = " ".join(f"{p['name']}={p['default']}" for p in row["parameters"])
            add_row(shown, name, row["passes"], parameters, row["does"], row["paper"])
        return Output(list(rows.values()), [shown, "Passes per step, at default options."])
    with usage_errors():
        made = method(which.method)
    row = described(which.method, METHODS[which.method], made)
    lines = [f"{row['name']}: {row['does']}", f"paper: {row['paper'] or 'none'}", f"passes per step: {row['passes']}"]
    params = table("parameter", "default", "source and meaning", fold=("source and meaning",))
    for p in row["parameters"]:
        add_row(params, p["name"], p["default"], p["source"])
    return Output(row, ["\n".join([*lines, f"{row['class']}: {row['definition']}", ""]), params])


def described(name: str, factory: Callable[..., Method], made: Method) -> dict[str, Any]:
    """Return the description of a method, read from its code."""
    does, paper = ABOUT[name]
    ours, sources = inspect.signature(factory).parameters.values(), comments(factory)
    usual = {p.name: p.default for p in inspect.signature(type(made)).parameters.values()}
    for parameter, source in comments(type(made)).items():
        if any(
            p.name == parameter and p.default == usual[parameter] for p in ours
        ):  # otherwise the comment is about another default
            sources.setdefault(parameter, source)
    parameters = [{"name": p.name, "default": typed(p.default), "source": sources.get(p.name, "")} for p in ours]
    pages = [inspect.getdoc(type(made)) or "", inspect.getdoc(factory) or ""]
    documents = dict.fromkeys(page.partition("\n\nParameters\n")[0] for page in pages)
    definition = " ".join(" ".join(documents).split())
    return {
        "name": name, "does": does, "paper": paper, "passes": passes(made), "parameters": parameters,
        "class": type(made).__name__, "definition": definition,
    }  # fmt: skip


def typed(default: Any) -> Any:
    """Return a default as a user types it."""
    from ..core.triple import TRIPLES

    return next((name for name, triple in TRIPLES.items() if triple is default), default)


def passes(made: Method) -> str:
    """Return the number of passes per step, and that of the first or of every k-th step if it differs."""
    costs = [made.cost(step) for step in range(STEPS)]
    odd = [step for step, cost in enumerate(costs) if cost != costs[1]]
    if not odd:
        return str(costs[0])
    return f"{costs[1]}; first step {costs[0]}" if odd == [0] else f"{costs[1]}; every {odd[1]} steps {costs[0]}"


def comments(where: object) -> dict[str, str]:
    """Return the parameters in the numpy-style docstring of a function or class, with their descriptions."""
    section = (inspect.getdoc(where) or "").partition("\nParameters\n----------\n")[2]
    entries = re.findall(r"^(\w+(?:, \w+)*)\n((?:    .+\n?)+)", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


COMMANDS = {
    "methods": Command(
        "methods",
        "List the methods with their cost, parameters and papers.",
        (Which,),
        run,
        ["steppe methods", "steppe methods frob-sam", "steppe methods --json"],
    )
}
