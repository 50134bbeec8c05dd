"""The page's overview: rank correlations, the two hypotheses in words, and which settings measures follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf, isfinite
from typing import Any

from ..statistics.by_setting import Effect, effects, environments, granulated
from ..statistics.findings import Comparison, Correlation
from ..statistics.hypotheses import Answer
from ..statistics.tau import Chance, Tau
from ..table import Table

# for a page that is made every few seconds, and for effects, of which only the size is shown
QUICK = Chance(resamples=300, permutations=999, redraws=5)
SEED = "seed"  # the one setting whose values have no meaning


def overview(table: Table, settings: Sequence[str], results: Sequence[Comparison]) -> dict[str, Any]:
    """Correlations, answers, effects and robustness over the runs that count."""
    differing = set(table.settings())
    swept = [s for s in settings if s != SEED and s in differing]
    followed = effects(table, settings=swept, how=QUICK) if len(table) > 2 else []
    return {
        "correlations": [_correlation(r.correlation) for r in results],
        "answers": _answers(table, results, followed),
        "effects": [_effect(e) for e in followed],
        "robust": [_robust(table, r.correlation, swept) for r in results] if swept else [],
    }


def _tau(tau: Tau) -> dict[str, Any]:
    return asdict(tau) | {"ignores_errors": tau.ignores_errors}


def _correlation(c: Correlation) -> dict[str, Any]:
    groups = {name: _tau(tau) for name, tau in c.by_group.items()}
    within = _tau(c.within) if c.within else None
    return {"measure": c.measure, "target": c.target, "pooled": _tau(c.pooled), "within": within, "by_group": groups}


def _effect(e: Effect) -> dict[str, Any]:
    tau, within = (t.tau if t else None for t in (e.pooled, e.within))
    row = {"measure": e.measure, "setting": e.setting, "share": e.share, "p": e.p, "n": e.n}
    return row | {"tau": tau, "within": within}


def _robust(table: Table, c: Correlation, swept: Sequence[str]) -> dict[str, Any]:
    """The measure setting by setting: the granulated coefficient, and the sign errors with the worst environment."""
    x, y = table.measure(c.measure), table.target(c.target)
    columns = {name: table.setting(name) for name in swept}
    psi = granulated(x.values, y.values, columns)
    errors = environments(x.values, y.values, columns, resolution=y.errors)
    worst = errors.found[0] if errors.found else None
    where = f"{worst.setting} {worst.values[0]} to {worst.values[1]}" if worst else ""
    row = {"measure": c.measure, "target": c.target, "psi": psi.value, "mean": errors.mean, "worst": errors.worst}
    return row | {"where": where, "pairs": worst.pairs if worst else 0}


def _answers(table: Table, results: Sequence[Comparison], followed: Sequence[Effect]) -> list[dict[str, Any]]:
    """One card per question about the study's first target; with too few runs, one that says so."""
    if not results:
        words = (
            f"{len(table)} finished runs count, with {len(table.measures)} measures and {len(table.targets)} targets."
        )
        question = "Does sharpness predict generalisation here?"
        return [{"question": question, "verdict": "Not enough runs yet", "words": [words]}]
    target = results[0].correlation.target
    first = {r.correlation.measure: r for r in results if r.correlation.target == target}
    taus = {measure: r.correlation.pooled.tau for measure, r in first.items()}
    best = max(taus, key=lambda measure: taus[measure] if isfinite(taus[measure]) else -inf)
    largest = max(first, key=lambda measure: first[measure].weak.numbers.get("difference", -inf))
    strong, weak = ({measure: getattr(r, kind) for measure, r in first.items()} for kind in ("strong", "weak"))
    return [
        _card(f"Strong hypothesis: is sharpness highly correlated with {target}?", strong, best),
        _card(f"Weak hypothesis: do the flattest runs have a lower {target}?", weak, largest),
        *_followed(followed),
    ]


def _card(question: str, answers: Mapping[str, Answer], best: str) -> dict[str, Any]:
    """The verdicts of all measures, and the sentence of the measure that is most in favour of the hypothesis."""
    counts = Counter(answer.verdict for answer in answers.values())
    n = len(answers)
    if len(counts) == 1:
        (only,) = counts
        by = "" if n == 1 else f" by any of {n} measures" if only == "not supported" else f" by all {n} measures"
        verdict = only.capitalize() + by
    else:
        verdict = f"Of {n} measures: {', '.join(f'{verdict} by {k}' for verdict, k in counts.most_common())}"
    words = [f"{f'Most in favour is {best}' if n > 1 else best}: {answers[best].words}"]
    if n > 1:
        words.append(f"The best of {n}; its interval is not corrected for that choice. The table below lists all.")
    return {"question": question, "verdict": verdict, "words": words}


def _followed(followed: Sequence[Effect]) -> list[dict[str, Any]]:
    """A card with the setting that measures follow most: the learning-rate effect of Figure 6, if it is one."""
    leaders: dict[str, Effect] = {}
    for e in followed:
        if isfinite(e.share) and (e.measure not in leaders or e.share > leaders[e.measure].share):
            leaders[e.measure] = e
    if not leaders:
        return []
    setting, k = Counter(e.setting for e in leaders.values()).most_common(1)[0]
    top = max((e for e in leaders.values() if e.setting == setting), key=lambda e: e.share)
    chance = (top.values - 1) / (top.n - 1)
    words = f"For {top.measure}, {top.share:.0%} of the variance of its ranks lies between values of {setting}"
    words += f" ({chance:.0%} by chance alone, p = {top.p:.2g})."
    if top.pooled is not None:
        words += f" Its tau with {setting} is {top.pooled}."
    verdict = f"{k} of {len(leaders)} measures: {setting}" if len(leaders) > 1 else setting
    return [{"question": "Which setting do measures follow most?", "verdict": verdict, "words": [words], "wide": True}]
