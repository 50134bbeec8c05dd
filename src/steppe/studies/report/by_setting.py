"""Measures setting by setting: which settings they follow, and where they rank runs wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite, nan
from typing import Any

from ..statistics.by_setting import Effect, effects, environments, granulated
from ..statistics.clusters import SEEDS
from ..statistics.findings import Findings
from ..statistics.predictions import Finding
from ..table import Table


def by_setting(table: Table, settings: Sequence[str], results: Findings) -> dict[str, Any]:
    """Effects of settings on measures with the strongest in a sentence, and sign errors, over the runs that count."""
    differing = set(table.settings())
    swept = [s for s in settings if s not in SEEDS and s in differing]
    followed = effects(table, settings=swept) if len(table) > 2 else []
    strong = [f for f in results.findings if f.hypothesis == "strong"]
    return {
        "effects": [asdict(e) for e in followed],
        "followed": _followed(followed),
        "robust": [_robust(table, f, swept) for f in strong] if swept else [],
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
