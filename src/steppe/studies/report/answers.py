"""The page's overview: the study's findings, and which settings measures follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite, nan
from typing import Any

from ..statistics.by_setting import Effect, effects, environments, granulated
from ..statistics.clusters import SEED
from ..statistics.findings import Findings
from ..statistics.predictions import CONFIDENCE, Finding, GroupTau
from ..table import Table


def overview(table: Table, settings: Sequence[str], results: Findings) -> dict[str, Any]:
    """Findings, effects and robustness over the runs that count."""
    differing = set(table.settings())
    swept = [s for s in settings if s != SEED and s in differing]
    followed = effects(table, settings=swept) if len(table) > 2 else []
    strong = [f for f in results.findings if f.hypothesis == "strong"]
    return {
        "findings": results.to_dict(),
        "correlations": [_correlation(f, results) for f in strong],
        "answers": _answers(results, followed),
        "effects": [asdict(e) for e in followed],
        "robust": [_robust(table, f, swept) for f in strong] if swept else [],
    }


def _tau(tau: Finding | GroupTau) -> dict[str, Any]:
    """A tau in the words of the page's table."""
    row: dict[str, Any] = {"tau": tau.tau, "low": tau.low, "high": tau.high, "n": tau.n, "level": CONFIDENCE}
    if isinstance(tau, GroupTau):
        return row | {"missing": 0, "interval": "no interval: too few configurations"}
    return row | {"missing": tau.missing, "p": tau.p, "adjusted": tau.p_corrected, "interval": tau.why}


def _correlation(f: Finding, results: Findings) -> dict[str, Any]:
    same = [
        g for g in results.findings if (g.measure, g.target, g.hypothesis) == (f.measure, f.target, "within groups")
    ]
    groups = {g.group: _tau(g) for within in same for g in within.by_group}
    within = _tau(same[0]) if same else None
    return {"measure": f.measure, "target": f.target, "pooled": _tau(f), "within": within, "by_group": groups}


def _robust(table: Table, f: Finding, swept: Sequence[str]) -> dict[str, Any]:
    """The measure setting by setting: the granulated coefficient, and the sign errors with the worst environment."""
    x, y = table.measure(f.measure), table.target(f.target)
    columns = {name: table.setting(name) for name in swept}
    psi = granulated(x.values, y.values, columns)
    errors = environments(x.values, y.values, columns, resolution=y.errors)
    worst = errors.found[0] if errors.found else None
    where = f"{worst.setting} {worst.values[0]} to {worst.values[1]}" if worst else ""
    row = {"measure": f.measure, "target": f.target, "psi": psi.value, "mean": errors.mean, "worst": errors.worst}
    return row | {"where": where, "pairs": worst.pairs if worst else 0}


def _answers(results: Findings, followed: Sequence[Effect]) -> list[dict[str, Any]]:
    """One card per question."""
    words = list(results.measure_sentences.values())
    cards = [{"question": "Does sharpness predict generalisation here?", "verdict": results.sentence, "words": words}]
    if results.comparisons:
        warned = list(
            dict.fromkeys(f"{c.warning[0].upper()}{c.warning[1:]}." for c in results.comparisons if c.warning)
        )
        cards.append({"question": "Which method won?", "verdict": results.method_sentence, "words": warned})
    return [*cards, *_followed(followed)]


def _followed(followed: Sequence[Effect]) -> list[dict[str, Any]]:
    """A card with the setting that measures follow most: the learning-rate effect of Figure 6, if it is one."""
    leaders: dict[str, Effect] = {}
    for e in followed:
        if isfinite(e.share) and (e.measure not in leaders or _separation(e) > _separation(leaders[e.measure])):
            leaders[e.measure] = e
    if not leaders:
        return []
    setting, k = Counter(e.setting for e in leaders.values()).most_common(1)[0]
    top = max((e for e in leaders.values() if e.setting == setting), key=_separation)
    words = (
        f"The values of {setting} separate the runs by {top.measure} to {_separation(top):.0%} of a perfect separation"
    )
    words = words.replace("%", " %") + f" ({top.n} runs, {top.values} values)."
    if isfinite(top.tau):
        words += f" Among pairs with different {setting}, tau is {top.tau / top.tau_ceiling:+.2f}."
    verdict = f"{k} of {len(leaders)} measures: {setting}" if len(leaders) > 1 else setting
    return [{"question": "Which setting do measures follow most?", "verdict": verdict, "words": [words], "wide": True}]


def _separation(e: Effect) -> float:
    return e.share / e.ceiling if e.ceiling else nan
