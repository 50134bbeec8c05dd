"""Functionals of the Hessian by name: registered triples, and new ones from the parts of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from math import isfinite
from numbers import Real
from typing import Any

import torch

from .._util.names import unknown
from .triple import (
    TRIPLES,
    Hypercube,
    Times,
    Triple,
    bessel,
    gaussian,
    identity,
    moments,
    rademacher,
    sphere,
    twice_variance,
    uncorrected,
    uphill,
)

FUNCTIONS: Mapping[str, Any] = {
    "identity": identity,
    "times": Times,
    "moments": moments,
    "twice-variance": twice_variance,
}
"""Parts phi and psi."""

LAWS: Mapping[str, Any] = {
    "sphere": sphere,
    "gaussian": gaussian,
    "rademacher": rademacher,
    "uphill": uphill,
    "hypercube": Hypercube,
}
"""Parts mu."""

CORRECTIONS: Mapping[str, Any] = {"none": uncorrected, "bessel": bessel}
KEYS = ("like", "phi", "psi", "mu", "logs", "correction")


def triple_of(spec: str | Mapping[str, Any]) -> Triple:
    """A triple by name, or from the names of its parts.

    Parameters
    ----------
    spec
        A name in `TRIPLES`, or a mapping with `phi` and `psi` from `FUNCTIONS`, `mu` from `LAWS` (or a list of them),
        and `logs` and `correction` as in `Triple`. A part with a number is a mapping, such as `{"times": -2}` or
        `{"hypercube": 0.05}`, half of a side. Parts that are left out are those of the triple named by `like`.

    """
    if isinstance(spec, str):
        if spec not in TRIPLES:
            raise ValueError(unknown("triple", spec, TRIPLES))
        return TRIPLES[spec]
    for key in spec:
        if key not in KEYS:
            raise ValueError(unknown("part of a triple", str(key), KEYS))
    parts: dict[str, Any] = {name: _part(spec[name], name, FUNCTIONS) for name in ("phi", "psi") if name in spec}
    if "mu" in spec:
        laws = spec["mu"] if isinstance(spec["mu"], list | tuple) else [spec["mu"]]
        parts["laws"] = tuple(_part(law, "mu", LAWS) for law in laws)
    if "logs" in spec:
        if not isinstance(spec["logs"], bool):
            raise ValueError(f"logs of a triple takes true or false, not {spec['logs']!r}")
        parts["logs"] = spec["logs"]
    if "correction" in spec:
        parts["correction"] = _part(spec["correction"], "correction", CORRECTIONS)
    missing = [key for key, name in (("phi", "phi"), ("psi", "psi"), ("mu", "laws")) if name not in parts]
    if missing and "like" not in spec:
        raise ValueError(f"a triple takes phi, psi and mu, and {missing[0]} is missing: name it, or a triple with like")
    made = replace(triple_of(str(spec["like"])), **parts) if "like" in spec else Triple(**parts)
    size = made.phi(torch.zeros(made.m) if made.m > 1 else torch.zeros(())).numel()
    if size != 1:
        raise ValueError(f"phi of a triple takes the {made.m} components of psi to one number, not to {size}")
    return made


def _part(spec: Any, place: str, parts: Mapping[str, Any]) -> Any:
    """One part: a name, or a mapping of a name to its number."""
    with_number = isinstance(spec, Mapping) and len(spec) == 1
    name, number = next(iter(spec.items())) if with_number else (spec, None)
    if not isinstance(name, str) or name not in parts:
        raise ValueError(unknown(f"{place} of a triple", str(name), parts))
    part = parts[name]
    if not isinstance(part, type):  # a function
        if with_number:
            raise ValueError(f"{place} of a triple takes {name} without a number, not {spec!r}")
        return part
    option = fields(part)[0]
    if not with_number and option.default is not MISSING:
        return part()
    if not isinstance(number, Real) or isinstance(number, bool) or not isfinite(number):
        raise ValueError(f"{place} of a triple takes {name} with its {option.name}, {{{name}: NUMBER}}, not {spec!r}")
    return part(float(number))
