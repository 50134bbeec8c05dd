"""The page's data in JSON types: the runs of a study column by column, and its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from math import isfinite, nan
from typing import Any

from ..._util.formats import json_safe
from ..._util.numbers import span
from ...core.fields import fits
from ...training.config import Config
from ..cell import Cell
from ..pictures import roles_of
from ..plan import TARGETS
from ..pool import Pool
from ..result import findings_of, in_order
from ..run import ABOUT, described
from ..statistics.by_setting import Effect, effect, effects, environments, granulated
from ..statistics.design import SEEDS
from ..statistics.findings import Findings
from ..statistics.permutation import FIRST
from ..statistics.predictions import Finding
from ..statistics.sentences import amount
from ..store import Store
from ..table import Measured, Table, as_text
from .definitions import definition, label
from .notes import ensembles, pictures

Content = dict[str, Any]
ORDER = [f.name for f in fields(Config)]  # of settings; a store sorts them by name
STUDY_KEYS = ("targets", "measures", "groups", "admission", "show")  # keys of a study's note beside its cells
POINTS = 60  # per curve: more are not visible at the width of a page
FEWEST_POINTS = 8
CURVE_NUMBERS = 150_000  # of all curves together: about a megabyte
QUICK = 2_000  # permutations for a page that is made every few seconds
NOT_DRAWN = {"epoch", "step", "passes", "skipped", "seconds", "images_per_second", "evaluation_seconds"}


def content(
    store: Store, results: Findings | None = None, *, full: bool = True, stored: Table | None = None
) -> Content:
    """Collect everything on the page.

    Parameters
    ----------
    store : Store
        The study's store.
    results : Findings, optional
        The study's findings, if they are already computed; computed here by default.
    full : bool
        With False, p-values start from fewer permutations, for a page that follows a running study.
    stored : Table, optional
        The store's runs, if they are already read.

    Returns
    -------
    dict
        JSON types only.

    """
    notes = store.notes()
    study = notes.get(ABOUT)
    study = study if isinstance(study, Mapping) else {}
    stored = store.table() if stored is None else stored
    plan, cells = described(study, stored, store.path.parent)
    pool = Pool.of(plan, cells or [Cell(r.key, r.name, r.config, r.groups) for r in stored.runs], stored)
    table, used = pool.planned, {run.key for run in pool.used}
    admitted = [run.key in used if run.state == "done" else None for run in table.runs]
    settings = _settings(table, study.get("groups") or ())
    targets, measures = (in_order(study.get(k), getattr(table, k)) for k in ("targets", "measures"))
    if results is None:
        draws = FIRST if full else QUICK
        chosen_targets, tuned = study.get("targets") or pool.counted.targets, study.get("tuned") or ()
        results = findings_of(pool, plan, chosen_targets, tuned=tuned, draws=draws)
    roles = roles_of(Table(pool.used), next(iter(targets), None), next(iter(measures), None))
    page: Content = {
        "title": str(study.get("title") or study.get("name") or store.path.resolve().parent.name),
        "titled": bool(study.get("title")),
        "question": str(study.get("question") or ""),
        "notes": str(study.get("notes") or ""),
        "runs": {
            "names": [run.name for run in table.runs],
            "keys": [run.key for run in table.runs],
            "states": [run.state for run in table.runs],
            "errors": [run.error for run in table.runs],
            "admitted": admitted,
            "groups": table.labels(),
        },
        "settings": [{"name": name, "values": values} for name, values in settings.items()],
        "common": _common(table, settings),
        "targets": [_target(table, name, study) for name in targets],
        "measures": [_measure(table, name) for name in measures],
        "curves": _curves(store, table),
        "making": _making(store, pool, study, [cell.predicts for cell in cells if cell.stage == "sweep"]),
        **pictures(notes, table, roles),
        **ensembles(notes, table, settings, measures),
        "findings": results.to_dict(),
        **_by_setting(pool.related, list(settings), study.get("targets") or targets, results),
        "live": 0,
    }
    safe: Content = json_safe(page, str)
    return safe


def _settings(table: Table, groups: Sequence[str]) -> dict[str, list[Any]]:
    """The settings that differ between runs, and columns of a pool's CSV file that define groups."""
    rank = {"method": 0, **dict.fromkeys(groups, 1), **dict.fromkeys(SEEDS, 3)}
    paths = sorted(table.settings(), key=lambda path: (rank.get(path, 2), _place(path)))
    columns = {p: table.setting(p).tolist() for p in paths if not any(q.startswith(f"{p}.") for q in paths)}
    for path in [p for p in columns if "." in p and len({repr(v) for v in columns[p] if v is not None}) < 2]:
        del columns[path]  # an option that only one method has, always with the same value: the method implies it
    for name in dict.fromkeys(name for run in table.runs for name in run.groups):
        values = [as_text(run.groups.get(name)) for run in table.runs]
        if name not in columns and len(set(map(repr, values))) > 1:
            columns[name] = values
    return columns


def _place(path: str) -> int:
    name = path.partition(".")[0]
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _common(table: Table, settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The part of the configuration that all runs share."""
    differ = {name.split(".")[0] for name in settings}
    first = table.runs[0].config if table.runs else {}
    shared = {n: v for n, v in first.items() if n not in differ and v not in (None, [], {})}
    return [(name, as_text(shared[name])) for name in sorted(shared, key=_place)]


def _target(table: Table, name: str, study: Mapping[str, Any]) -> Content:
    column = table.target(name)
    return {
        "name": name,
        "values": column.values,
        "errors": column.errors,
        "about": TARGETS[name].about if name in TARGETS else "from the study's own table",
        "asked": name in (study.get("targets") or [name]),
        "percent": amount(name, 0.0).endswith("%"),
        "label": label(name),
    }


def _measure(table: Table, name: str) -> Content:
    column = table.measure(name)
    of_runs = [run.measures.get(name) for run in table.runs]
    known = [m for m in of_runs if m is not None]
    how = list(dict.fromkeys(_how(m) for m in known))
    return {
        "name": name,
        "values": column.values,
        "errors": column.errors,
        "how": how,
        "which": [None if m is None else how.index(_how(m)) for m in of_runs],
        "kinds": list(dict.fromkeys(m.kind for m in known if m.kind)),
        "n": span([m.n for m in known]),
        "cost": _cost(known),
        "seconds": _mean([m.seconds for m in known]),
        "about": definition(name),
        "label": label(name),
    }


def _how(m: Measured) -> str:
    marks = [m.kind, f"n = {m.n}" if m.n > 1 else "", m.note, "" if m.complete else "stopped early"]
    return ", ".join(mark for mark in marks if mark)


def _cost(known: Sequence[Measured]) -> str:
    """The mean cost per run, in passes over the rows."""
    from ...core.estimate import Cost

    means = {word: _mean([m.cost.get(word, nan) for m in known]) for word in ("losses", "gradients", "products")}
    passes = {word: mean for word, mean in means.items() if mean > 0}
    return str(Cost(**passes)) if passes else ""


def _mean(numbers: Sequence[float]) -> float:
    finite = [x for x in numbers if isfinite(x)]
    return sum(finite) / len(finite) if finite else nan


def _by_setting(table: Table, settings: Sequence[str], targets: Sequence[str], results: Findings) -> Content:
    """Effects of settings on measures and targets, the strongest in a sentence, and sign errors: of runs that count."""
    differing = set(table.settings())
    swept = [s for s in settings if s not in SEEDS and s in differing]
    compared = swept if len(table) > 2 else []
    followed = effects(table, settings=compared)
    strong = [f for f in results.findings if f.hypothesis == "strong"]
    return {
        "effects": [asdict(e) for e in followed],
        "followed": _followed(followed),
        "robust": [_robust(table, f, swept) for f in strong] if swept else [],
        "target_effects": [asdict(effect(table.target(t), s, table.setting(s))) for t in targets for s in compared],
    }


def _robust(table: Table, f: Finding, swept: Sequence[str]) -> dict[str, Any]:
    """The granulated coefficient, and the sign errors with the worst environment."""
    x, y = table.measure(f.measure), table.target(f.target)
    columns = {name: table.setting(name) for name in swept}
    psi = granulated(x.values, y.values, columns)
    errors = environments(x.values, y.values, columns, resolution=y.errors)
    worst = errors.found[0] if errors.found else None
    where = f"{worst.setting} {worst.values[0]} to {worst.values[1]}" if worst else ""
    row = {"measure": f.measure, "target": f.target, "psi": psi.value, "mean": errors.mean, "worst": errors.worst}
    return row | {"where": where, "pairs": worst.pairs if worst else 0}


def _followed(followed: Sequence[Effect]) -> str:
    """The setting that most measures follow most: the learning-rate effect of the paper's Figure 6, if it is one."""
    leaders: dict[str, Effect] = {}
    for e in followed:
        if isfinite(e.share) and (e.measure not in leaders or _separation(e) > _separation(leaders[e.measure])):
            leaders[e.measure] = e
    if not leaders:
        return ""
    setting, k = Counter(e.setting for e in leaders.values()).most_common(1)[0]
    top = max((e for e in leaders.values() if e.setting == setting), key=_separation)
    share = f"{100 * _separation(top):.0f} % of a perfect separation ({top.n} runs)"
    return f"{k} of {len(leaders)} measures follow {setting} most: its values separate {top.measure} to {share}."


def _separation(e: Effect) -> float:
    return e.share / e.ceiling if e.ceiling else nan


def _curves(store: Store, table: Table) -> Content:
    """Per run, the records of its epochs, thinned; None for a run without records."""
    records = [store.curves(run.key) for run in table.runs]
    drawn = (name for rows in records for row in rows for name in row if _is_drawn(name, row[name]))
    metrics = list(dict.fromkeys(drawn))
    with_records = sum(bool(rows) for rows in records)
    points = min(POINTS, max(FEWEST_POINTS, CURVE_NUMBERS // max(1, with_records * (len(metrics) + 1))))
    return {
        "metrics": metrics,
        "percent": [name.endswith("accuracy") or amount(name, 0.0).endswith("%") for name in metrics],
        "runs": [_thinned(rows, metrics, points) if rows else None for rows in records],
    }


def _is_drawn(name: str, value: Any) -> bool:
    return name not in NOT_DRAWN and fits(value, float)


def _thinned(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], points: int) -> dict[str, list[Any]]:
    """Evenly spaced epochs with the first and the last; only metrics that this run has."""
    n = len(rows)
    picked = rows if n <= points else [rows[round(i * (n - 1) / (points - 1))] for i in range(points)]
    columns: dict[str, list[Any]] = {"epoch": [row.get("epoch", i) for i, row in enumerate(picked)]}
    for name in metrics:
        values = [row.get(name) for row in picked]
        if any(v is not None for v in values):
            columns[name] = [float(f"{v:.5g}") if isinstance(v, float) else v for v in values]
    return columns


def _making(store: Store, pool: Pool, study: Mapping[str, Any], swept: Sequence[bool]) -> list[Content]:
    """How the numbers were made: the study, its settings, and the versions that computed it."""
    share = f"{len(pool.used)} of {sum(run.state == 'done' for run in pool.planned.runs)} finished runs"
    without = ["without those of the sweep"] if swept and not any(swept) else []
    which = " and ".join(map(str, study.get("admission") or ())) or "without an admission rule"
    rows: list[tuple[str, Any]] = [
        ("store", store.path.name),
        ("page written", datetime.now(UTC).isoformat(timespec="seconds")),
        ("runs that count", ", ".join([share, *without, which])),
        ("groups", ", ".join(dict.fromkeys(name for run in pool.planned.runs for name in run.groups)) or "none"),
        ("errors", "one standard error; for measures, from independent draws"),
        ("costs", "passes over the measured samples: losses (forward only), gradients, Hessian-vector products"),
    ]
    versions = [", ".join(f"{name} {version}" for name, version in one.items()) for one in store.versions() if one]
    labels = [f"versions {i}" for i in range(1, len(versions) + 1)] if len(versions) > 1 else ["versions"]
    return [
        {"title": "Study", "rows": rows},
        {"title": "Configuration", "rows": [(key, as_text(study[key])) for key in STUDY_KEYS if study.get(key)]},
        {"title": "Computed with", "rows": list(zip(labels, versions, strict=False))},
    ]
