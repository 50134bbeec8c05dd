"""What the page shows of findings: rank correlations, the two hypotheses in words, and what measures follow instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from ..correlate import Correlation
from ..effects import Effect, effects
from ..environments import environments
from ..finding import Held, findings
from ..granulated import granulated
from ..hypotheses import Answer
from ..table import Table
from ..tau import Chance, Tau

# for a page that is made every few seconds, and where only the size of an effect is shown
QUICK = Chance(resamples=300, permutations=999, redraws=5)
SEED = "seed"  # of all settings the one whose values mean nothing


def shown(
    table: Table, settings: Sequence[str], targets: Sequence[str] | None = None, *, full: bool = True
) -> dict[str, Any]:
    """Correlations, answers, effects and robustness of the runs that count; of all targets unless some are named."""
    how = Chance() if full else QUICK
    held = [t for t in table.targets if t in targets] if targets else table.targets
    held.sort(key=list(targets or held).index)
    found = findings(table, targets=held, how=how) if len(table) > 1 else []
    differ = set(table.settings())
    swept = [s for s in settings if s != SEED and s in differ]
    followed = effects(table, settings=swept, how=QUICK) if len(table) > 2 else []
    return {
        "correlations": [_correlation(one.correlation) for one in found],
        "answers": _answers(table, found, followed),
        "effects": [_effect(e) for e in followed],
        "robust": [_robust(table, one.correlation, swept) for one in found] if swept else [],
    }


def _tau(tau: Tau) -> dict[str, Any]:
    return asdict(tau) | {"ignores_errors": tau.ignores_errors}


def _correlation(c: Correlation) -> dict[str, Any]:
    groups = {name: _tau(tau) for name, tau in c.by_group.items()}
    within = _tau(c.within) if c.within else None
    return {"measure": c.measure, "target": c.target, "pooled": _tau(c.pooled), "within": within, "by_group": groups}


def _effect(e: Effect) -> dict[str, Any]:
    within = e.within.tau if e.within else None
    tau = e.pooled.tau if e.pooled else None
    said = {"measure": e.measure, "setting": e.setting, "share": e.share, "p": e.p, "n": e.n}
    return said | {"tau": tau, "within": within}


def _robust(table: Table, c: Correlation, swept: Sequence[str]) -> dict[str, Any]:
    """The measure setting by setting: the granulated coefficient, and where it does worst."""
    x, y = table.measure(c.measure), table.target(c.target)
    columns = {name: table.setting(name) for name in swept}
    psi = granulated(x.values, y.values, columns)
    by = environments(x.values, y.values, columns, resolution=y.errors)
    where = f"{by.found[0].setting} {by.found[0].values[0]} to {by.found[0].values[1]}" if by.found else ""
    pairs = by.found[0].pairs if by.found else 0
    said = {"measure": c.measure, "target": c.target, "psi": psi.value, "mean": by.mean, "worst": by.worst}
    return said | {"where": where, "pairs": pairs}


def _answers(table: Table, found: Sequence[Held], followed: Sequence[Effect]) -> list[dict[str, Any]]:
    """One card a question, about the study's first target; with too few runs, one that says so."""
    if len(table) < 2 or not found:
        words = (
            f"{len(table)} finished runs count, with {len(table.measures)} measures and {len(table.targets)} targets."
        )
        question = "Does sharpness predict generalisation here?"
        return [{"question": question, "verdict": "Not enough to tell yet", "words": [words]}]
    target = found[0].correlation.target
    mine = {one.correlation.measure: one for one in found if one.correlation.target == target}
    strongs = {measure: one.strong for measure, one in mine.items()}
    weaks = {measure: one.weak for measure, one in mine.items()}
    taus = {measure: one.correlation.pooled.tau for measure, one in mine.items()}
    best = max(taus, key=lambda measure: taus[measure] if isfinite(taus[measure]) else float("-inf"))
    largest = max(weaks, key=lambda name: weaks[name].numbers.get("difference", float("-inf")))
    cards = [
        _card(f"Strong hypothesis: is sharpness highly correlated with {target}?", strongs, best),
        _card(f"Weak hypothesis: do the flattest runs have a lower {target}?", weaks, largest),
    ]
    return [*cards, *_followed(followed)]


def _card(question: str, answers: dict[str, Answer], shown: str) -> dict[str, Any]:
    """The verdicts over all measures, and the words for the measure that speaks most for the hypothesis."""
    counts = Counter(answer.verdict for answer in answers.values())
    n, words = len(answers), answers[shown].words
    if len(counts) == 1:
        (only,) = counts
        by = "" if n == 1 else f" by any of {n} measures" if only == "not supported" else f" by all {n} measures"
        verdict = only.capitalize() + by
    else:
        said = [f"{verdict} by {k}" for verdict, k in counts.most_common()]
        verdict = f"Of {n} measures: {', '.join(said)}"
    most = f"Most in favour is {shown}: " if n > 1 else f"{shown}: "
    told = [most + words]
    if n > 1:
        told.append(f"It was chosen after looking at {n}, which its interval does not know. The table below has all.")
    return {"question": question, "verdict": verdict, "words": told}


def _followed(followed: Sequence[Effect]) -> list[dict[str, Any]]:
    """Which setting measures follow most: the learning-rate effect of Figure 6, if it is one."""
    clear = [e for e in followed if isfinite(e.share)]
    if not clear:
        return []
    leaders: dict[str, Effect] = {}
    for e in clear:
        if e.measure not in leaders or e.share > leaders[e.measure].share:
            leaders[e.measure] = e
    counts = Counter(e.setting for e in leaders.values())
    setting, k = counts.most_common(1)[0]
    top = max((e for e in leaders.values() if e.setting == setting), key=lambda e: e.share)
    chance = (top.values - 1) / (top.n - 1)
    words = f"For {top.measure}, {top.share:.0%} of the variance of its ranks lies between values of {setting}"
    words += f" ({chance:.0%} by chance alone, p = {top.p:.2g})."
    if top.pooled is not None:
        words += f" Its tau with {setting} is {top.pooled}."
    verdict = f"{k} of {len(leaders)} measures: {setting}" if len(leaders) > 1 else setting
    question = "Of the settings, which do measures follow most?"
    return [{"question": question, "verdict": verdict, "words": [words], "wide": True}]
