"""Keys of a study's file about what is measured on what: measures, the inputs of a pool, and other test sets."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from .._util.measure_names import MeasureName, canonical_number
from ..data.registry import CHOICES, declared, split_name

EXAMPLES = {"measures": "lambda_max, trace", "targets": "test_error, gap", "groups": "lr"}


def names_in(value: Any, key: str) -> list[str]:
    """The names in a list, each once."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{key} takes a list of names, as in `{key}: [{EXAMPLES[key]}]`, not {value!r}")
    return list(dict.fromkeys(names))


def measures_in(value: Any) -> tuple[str, ...]:
    """The canonical names of measures, from a list of names or a mapping of names to radii; grids are expanded.

    The data options that a study's measures have anyway are left out, so that equal requests have one name.
    """
    names: list[str] = []
    for name, radii in value.items() if isinstance(value, Mapping) else []:
        listed = radii if isinstance(radii, list) else [radii]
        if not all(r is None or (isinstance(r, (int, float, str)) and not isinstance(r, bool)) for r in listed):
            raise ValueError(
                f"measures.{name} takes a list of radii, a paper's grid, or null for the measure's own, not {radii!r}"
            )
        one = MeasureName.of(str(name))
        names += [str(one if r is None else replace(one, radius=canonical_number(r) or str(r))) for r in listed]
    names = list(dict.fromkeys(names)) if isinstance(value, Mapping) else names_in(value, "measures")
    if all(MeasureName.of(name).is_plain for name in names):
        return tuple(names)
    from ..measures.registry import canonical_names  # imports torch, which plain names do not need
    from ..training.evaluate import M

    return tuple(canonical_names(names, {"rows": "train", "m": str(M), "precision": "float32"}))


def normalise_in(value: Any) -> str:
    """`normalise` as text, which `declared` reads: a mapping of mean and std becomes MEANS/STDS."""
    if isinstance(value, Mapping) and set(value) == {"mean", "std"}:
        columns = [v if isinstance(v, list) else [v] for v in (value["mean"], value["std"])]
        if all(isinstance(x, (int, float)) and not isinstance(x, bool) for column in columns for x in column):
            value = "/".join(",".join(map(repr, column)) for column in columns)
    if not isinstance(value, str):
        raise ValueError(f"normalise takes {CHOICES}, not {value!r}")
    declared(value)
    return value


def ood_in(value: Any, targets: Container[str]) -> dict[str, str]:
    """Test sets by name; NAME_error must not be one of the other targets."""
    if not isinstance(value, Mapping):
        raise ValueError(f"ood takes test sets by name, as in {{imagenet-r: folder:PATH}}, not {value!r}")
    for name, place in value.items():
        if not isinstance(place, str) or not split_name(place)[0]:
            raise ValueError(f"ood.{name} takes folder:PATH, folder:PATH@SIZE or npz:PATH, not {place!r}")
        if not re.fullmatch(r"[\w.+-]+", str(name)) or f"{name}_error" in targets:
            raise ValueError(f"ood: a test set cannot be called {name!r}: take letters, digits, - and _")
    return {str(name): place for name, place in value.items()}
