"""`steppe methods`: every method with its cost, its parameters and its paper."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import usage_errors
from .options import Command
from .output import Output, add_row, table

if TYPE_CHECKING:
    from ..core.probe import Method

FORET, TAHMASEBI, NGUYEN = "Foret et al. 2021", "Tahmasebi et al. 2024", "Nguyen et al. 2024"
NAGANUMA, MI = "Naganuma et al. 2024", "Mi et al. 2022"

ABOUT: Mapping[str, tuple[str, str]] = {  # what it does, and the paper; the same words as in README's table
    "none": ("nothing: the base optimizer itself", ""),
    "sam": (
        "the gradient at the top of a ball, for any p-norm; several ascent steps, un-normalised, weight decay in the "
        "ascent on request",
        FORET,
    ),
    "asam": ("SAM in a ball that scales with each weight, or each filter", "Kwon et al. 2021"),
    "sam-on": ("SAM that moves normalisation layers only", "Mueller et al. 2023"),
    "sa-sam": ("SAM whose step size follows the local smoothness, and its radius the step size", NAGANUMA),
    "sa-sgd": ("the same step size without the ascent", NAGANUMA),
    "universal-sam": ("any functional of the Hessian given as (phi, psi, mu)", TAHMASEBI),
    "trace-sam": ("towards a small trace of the Hessian", TAHMASEBI),
    "frob-sam": ("towards a small Frobenius norm of the Hessian", TAHMASEBI),
    "det-sam": ("towards a small determinant of the Hessian", TAHMASEBI),
    "agnostic-sam": ("up on training rows, down on held-out ones", NGUYEN),
    "agnostic-sam-simple": ("the same without the ascent on held-out rows", NGUYEN),
    "sharpbalance": ("SAM on the rows of a mask, plain on the others", "Lu et al. 2024"),
    "ssam-f": ("SAM on the weights of largest Fisher information", MI),
    "ssam-d": ("SAM on a mask that drops flat weights and grows others", MI),
    "gsam": ("SAM that also lowers the gap between the two losses", "Zhuang et al. 2022"),
    "looksam": ("SAM every few steps, its effect reused in between", "Liu et al. 2022 (CVPR)"),
    "rsam": ("SAM from a randomly smoothed gradient", "Liu et al. 2022 (NeurIPS)"),
    "esam": ("SAM on some tensors and the rows hit hardest", "Du et al. 2022"),
    "msam": ("the gradient ahead of the momentum", "Becker et al. 2024"),
    "m-sam": ("SAM on each part of the batch, or on each worker", FORET),
}
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
