"""Ensembles on the page: how much members disagree beside how sharp they are, and how the one goes with the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..pictures import ENSEMBLE
from ..table import Run, Table
from .findings import SEED

SHARPNESS = "sharpness"  # what ensembles that were kept by hand may call how sharp their members are
SCORES = ("disagreement", "der", "variance", "kl", "eir", "accuracy", "member_accuracy", "nll", "member_nll")  # first


def together(
    notes: Mapping[str, Any], table: Table, settings: Mapping[str, Sequence[Any]], measures: Sequence[str]
) -> dict[str, Any]:
    """Ensembles with the names and the measured sharpness of their members, and slopes over each kind of them."""
    number = {run.key: i for i, run in enumerate(table.runs)}
    kept = [value for name, value in notes.items() if name.startswith(ENSEMBLE)]
    kept.sort(key=lambda one: min((number.get(key, 0) for key in one.get("keys", ())), default=0))  # as planned
    found = []
    for one in kept:
        keys = one.get("keys")
        if keys is None:
            found.append({"errors": {}, **one})
        elif set(keys) <= set(number) and not any(set(keys) < set(other.get("keys", ())) for other in kept):
            said = {name: values[number[keys[0]]] for name, values in settings.items() if name != SEED}
            found.append({**_named(said), **_numbers(one, [table.runs[number[key]] for key in keys], measures)})
    return {"ensembles": found, "slopes": _slopes(found, measures)}


def _named(said: Mapping[str, Any]) -> dict[str, Any]:
    """What an ensemble is called: its method, and the other settings that differ between runs."""
    kind = said.get("method")
    others = [f"{k}={v:g}" if _number(v) else f"{k}={v}" for k, v in said.items() if k != "method" and v is not None]
    return {"name": " ".join([*([str(kind)] if kind else []), *others]), "kind": str(kind or "")}


def _numbers(one: Mapping[str, Any], runs: Sequence[Run], measures: Sequence[str]) -> dict[str, Any]:
    """The mean of what was measured of its members, with its error over members, and the ensemble's own scores."""
    from torch import float64, tensor

    from ...measures.estimate import summarise

    values, errors = {}, {}
    for name in measures:
        if all(name in run.measures for run in runs):
            mean = summarise(tensor([run.measures[name].value for run in runs], dtype=float64), "unbiased")
            values[name], errors[name] = mean.value, mean.stderr
    order = [*SCORES, *(name for name in one["values"] if name not in SCORES)]
    values |= {name: one["values"][name] for name in order if name in one["values"]}
    return {"members": one["members"], "values": values, "errors": errors | one["errors"]}


def _slopes(ensembles: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """For each kind the slope of the logarithm of a diversity over that of a sharpness, where three points or more."""
    if not ensembles:
        return []
    from ...ensembles.tradeoff import DIVERSITIES, slope

    found = []
    for kind in dict.fromkeys(str(e.get("kind", "")) for e in ensembles):
        mine = [e["values"] for e in ensembles if str(e.get("kind", "")) == kind]
        for x in (*measures, SHARPNESS):
            for y in (*DIVERSITIES, "diversity"):
                pairs = [(v[x], v[y]) for v in mine if _number(v.get(x)) and _number(v.get(y))]
                if len(pairs) > 2:  # two points have a slope, and no error
                    xs, ys = zip(*pairs, strict=True)
                    e = slope(xs, ys)
                    found.append({"kind": kind, "x": x, "y": y, "slope": e.value, "error": e.stderr, "n": e.n})
    return found


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
