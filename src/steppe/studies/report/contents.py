"""What the page shows, in JSON's own types: a study's runs column by column, and what was found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from math import isfinite, nan
from typing import Any

from ..._util.json import json_safe
from ...training.config import Config
from ..finding import counts, renamed
from ..pictures import chosen
from ..plan import TARGETS, Rule
from ..store import Store
from ..table import Measured, Table
from .attached import attached
from .curves import curves
from .definitions import definition
from .findings import SEED, shown
from .together import together

Content = dict[str, Any]
PLACES = [f.name for f in fields(Config)]  # of settings, as people know them
ASKED = ("targets", "measures", "groups", "admission", "show")  # what a study's note has to say beside its cells


def content(store: Store, *, full: bool = True) -> Content:
    """Everything on the page; without `full`, intervals and p-values come from fewer draws, for a study that runs."""
    notes = store.notes()
    study = notes.get("study")
    study = study if isinstance(study, Mapping) else {}
    table = _planned(store.table(), study)
    rules = [Rule.of(rule) for rule in study.get("admission") or []]
    admitted = [counts(run, rules) if run.state == "done" else None for run in table.runs]
    counted = table.where(lambda run: counts(run, rules))
    settings = _settings(table, study.get("groups") or ())
    targets, measures = (_first(study.get(k), getattr(table, k)) for k in ("targets", "measures"))
    roles = chosen(counted, next(iter(targets), None), next(iter(measures), None))
    made: Content = {
        "title": str(study.get("name") or store.path.resolve().parent.name),
        "runs": {
            "names": [run.name for run in table.runs],
            "keys": [run.key for run in table.runs],
            "states": [run.state for run in table.runs],
            "errors": [run.error for run in table.runs],
            "admitted": admitted,
            "groups": table.labels().tolist(),
        },
        "settings": [{"name": name, "values": values} for name, values in settings.items()],
        "common": _common(table, settings),
        "targets": [_target(table, name, study) for name in targets],
        "measures": [_measure(table, name) for name in measures],
        "curves": curves(store, table),
        "making": _making(store, table, study, rules, counted),
        **attached(notes, {run.key: i for i, run in enumerate(table.runs)}, roles),
        **together(notes, table, settings, measures),
        **shown(counted, list(settings), study.get("targets"), full=full),
        "live": False,
    }
    found: Content = json_safe(made, str)
    return found


def _planned(table: Table, study: Mapping[str, Any]) -> Table:
    """The runs that the study plans as it is now, in its order and with its groups; all if it does not say."""
    cells = study.get("cells")
    if not isinstance(cells, list):
        return table
    groups = study.get("groups") or []
    return renamed(table, ((key, name, dict(zip(groups, values, strict=True))) for key, name, values in cells))


def _first(asked: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Names that are there, those that were asked for first and in that order."""
    return [*(name for name in asked or () if name in there), *(name for name in there if name not in (asked or ()))]


def _settings(table: Table, groups: Sequence[str]) -> dict[str, list[Any]]:
    """What differs between runs, and what groups are made of beside settings: a pool's own columns."""
    # what matters most is first, and otherwise the order of a configuration: a store sorts by name
    rank = {"method": 0, **dict.fromkeys(groups, 1), SEED: 3}
    paths = sorted(table.settings(), key=lambda path: (rank.get(path, 2), _place(path)))
    found = {path: table.setting(path).tolist() for path in paths if not any(p.startswith(f"{path}.") for p in paths)}
    for path in [p for p in found if "." in p and len({repr(v) for v in found[p] if v is not None}) < 2]:
        del found[path]  # an option that only one method has, and always the same: the method says it all
    for name in dict.fromkeys(name for run in table.runs for name in run.groups):
        values = [_word(run.groups.get(name)) for run in table.runs]
        if name not in found and len(set(map(repr, values))) > 1:
            found[name] = values
    return found


def _place(path: str) -> int:
    name = path.partition(".")[0]
    return PLACES.index(name) if name in PLACES else len(PLACES)


def _word(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, Mapping)) else value


def _common(table: Table, settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The configuration as far as all runs share it."""
    differ = {name.split(".")[0] for name in settings}
    first = table.runs[0].config if table.runs else {}
    shared = {n: v for n, v in first.items() if n not in differ and v not in (None, [], {})}
    return [(name, _word(shared[name])) for name in sorted(shared, key=_place)]


def _target(table: Table, name: str, study: Mapping[str, Any]) -> Content:
    column = table.target(name)
    about = TARGETS.get(name, "as the study was given it").partition(";")[0]
    asked = name in (study.get("targets") or [name])
    values = {"values": column.values.tolist(), "errors": column.errors.tolist()}
    return {"name": name, **values, "about": about, "asked": asked}


def _measure(table: Table, name: str) -> Content:
    column = table.measure(name)
    found = [run.measures.get(name) for run in table.runs]
    there = [m for m in found if m is not None]
    how = list(dict.fromkeys(_how(m) for m in there))
    return {
        "name": name,
        "values": column.values.tolist(),
        "errors": column.errors.tolist(),
        "how": how,
        "which": [None if m is None else how.index(_how(m)) for m in found],
        "kinds": list(dict.fromkeys(m.kind for m in there if m.kind)),
        "n": _span([m.n for m in there]),
        "cost": _cost(there),
        "seconds": _mean([m.seconds for m in there]),
        "about": definition(name),
    }


def _how(m: Measured) -> str:
    marks = [m.kind, f"n = {m.n}" if m.n > 1 else "", m.note, "" if m.complete else "stopped early"]
    return ", ".join(mark for mark in marks if mark)


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _cost(there: Sequence[Measured]) -> str:
    """What a run took on average, in passes over the rows."""
    means = {word: _mean([m.cost.get(word, nan) for m in there]) for word in ("losses", "gradients", "products")}
    return ", ".join(f"{mean:.4g} {word}" for word, mean in means.items() if mean > 0)


def _mean(numbers: Sequence[float]) -> float:
    there = [x for x in numbers if isfinite(x)]
    return sum(there) / len(there) if there else nan


def _making(
    store: Store, table: Table, study: Mapping[str, Any], rules: Sequence[Rule], counted: Table
) -> list[Content]:
    kept = f"{len(counted)} of {sum(run.state == 'done' for run in table.runs)} finished runs"
    rule = f"by {' and '.join(map(str, rules))}" if rules else "for there is no admission rule"
    rows: list[tuple[str, Any]] = [
        ("store", store.path.name),
        ("this page", f"made {datetime.now(UTC).isoformat(timespec='seconds')}"),
        ("runs that count", f"{kept}, {rule}"),
        ("groups", ", ".join(dict.fromkeys(name for run in table.runs for name in run.groups)) or "none"),
        ("errors beside numbers", "one standard error; of measures from their independent draws"),
        ("costs", "passes over the measured rows: losses forward only, gradients, products with a Hessian"),
    ]
    sets = [", ".join(f"{name} {version}" for name, version in one.items()) for one in store.versions() if one]
    parts = [{"title": "Study", "rows": rows}]
    asked = [(key, _word(study[key])) for key in ASKED if study.get(key)]
    parts.append({"title": "As it was asked for", "rows": asked})
    labels = [f"versions {i}" for i in range(1, len(sets) + 1)] if len(sets) > 1 else ["versions"] * len(sets)
    parts.append({"title": "Computed with", "rows": list(zip(labels, sets, strict=True))})
    return parts
