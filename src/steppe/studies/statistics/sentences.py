"""Findings in plain English, for terminal and page alike: they quote numbers and verdicts, and decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from .comparisons import Comparison
from .predictions import Finding

IN_PERCENT = ("error", "gap")  # how names of targets end that are shares of rows; `loss_gap` is none
PLAIN_WORDS = {"none": "the plain optimizer", "deep": "the deep ensemble"}


def amount(target: str, value: float, *, signed: bool = False) -> str:
    """A value of a target as people write it: errors and their gap in percent, differences of them in points."""
    sign = "+" if signed else ""
    if target.endswith(IN_PERCENT) and not target.endswith("loss_gap"):
        return f"{100 * value:{sign}.2f} {'points' if signed else '%'}"
    return f"{value:{sign}.3g}"


def tau_words(value: float) -> str:
    """Tau with two digits; more where two would read as zero."""
    return f"{value:+.2f}" if abs(value) >= 0.005 or not value else f"{value:+.1g}"


def chance(p: float) -> str:
    """A p-value with two significant digits."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def p_words(p: float) -> str:
    """A p-value after its symbol."""
    return f"p {chance(p)}" if p < 1e-4 else f"p = {chance(p)}"


def listed(words: Iterable[str], conjunction: str = "and") -> str:
    """'a', 'a and b', or 'a, b and c'."""
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def numbers_of(f: Finding) -> str:
    """Tau with interval, corrected p and the numbers of runs."""
    span = f"95 % interval {tau_words(f.low)} to {tau_words(f.high)}" if isfinite(f.low) else "no interval"
    p = f"corrected {p_words(f.p_corrected)}" if isfinite(f.p_corrected) else "no p"
    return f"tau {tau_words(f.tau)}, {span}, {p}, {runs_words(f.n, f.configurations)}"


def runs_words(runs: int, configurations: int) -> str:
    """The size of a pool."""
    return f"{runs} runs of {configurations} configuration{'' if configurations == 1 else 's'}"


def of_finding(f: Finding) -> str:
    """One sentence on one measure, target and hypothesis."""
    where = " within groups" if f.hypothesis == "within groups" else ""
    flat = f"the flattest {f.flattest} runs by {f.measure} have a"
    claim, opposite = f"{f.measure} predicts {f.target}{where}", f"flatter runs have a higher {f.target}{where}"
    if f.hypothesis == "weak":
        than = f"{f.target} than the rest ({amount(f.target, f.mean_flattest)} and {amount(f.target, f.mean_rest)})"
        claim, opposite = f"{flat} lower {than}", f"{flat} higher {than}"
    if not f.pairs:
        return f"Cannot tell whether {claim if f.flattest else f'{f.measure} predicts {f.target}'}: {f.why}."
    numbers = f"({numbers_of(f)})"
    if f.verdict == "predicts":
        return f"{claim[0].upper() + claim[1:] if f.hypothesis == 'weak' else claim} {numbers}."
    if f.verdict == "predicts the opposite":
        return f"{f.measure} predicts the opposite: {opposite} {numbers}."
    if f.verdict == "no sign of it":
        return f"No sign that {claim} {numbers}: {f.why}."
    return f"Cannot tell whether {claim} {numbers}: {f.why}; {power_of(f)}."


def power_of(f: Finding) -> str:
    """What this pool could have shown."""
    if not isfinite(f.smallest_detectable_tau):
        return "no tau could have been significant"
    return f"a tau of {f.smallest_detectable_tau:.2f} is shown with 80 % power"


def of_measure(measure: str, rows: Sequence[Finding]) -> str:
    """One sentence per measure, by the strong hypothesis; others are named where they have a verdict."""
    parts = []
    mine = [f for f in rows if f.measure == measure]
    for verdict, words in VERDICT_WORDS.items():
        chosen = [_with_tau(f) for f in mine if f.hypothesis == "strong" and f.verdict == verdict]
        parts += [f"{words} {listed(chosen)}"] if chosen else []
    for hypothesis, where in (("within groups", "within groups"), ("weak", "by its flattest runs")):
        for verdict in ("predicts", "predicts the opposite"):
            targets = [f.target for f in mine if f.hypothesis == hypothesis and f.verdict == verdict]
            parts += [f"{where}, {VERDICT_WORDS[verdict]} {listed(targets)}"] if targets else []
    return f"{measure} {'; '.join(parts)}."


VERDICT_WORDS = {
    "predicts": "predicts",
    "predicts the opposite": "predicts the opposite for",
    "no sign of it": "shows no sign of predicting",
    "cannot tell": "cannot tell for",
}


def _with_tau(f: Finding) -> str:
    span = f", {tau_words(f.low)} to {tau_words(f.high)}" if isfinite(f.low) else ""
    return f"{f.target} (tau {tau_words(f.tau)}{span})" if isfinite(f.tau) else f.target


def of_study(rows: Sequence[Finding], runs: int, configurations: int) -> str:
    """Whether sharpness predicts generalisation in this study, in one sentence that names the measures."""
    pool = runs_words(runs, configurations)
    strong = [f for f in rows if f.hypothesis == "strong"]
    if not strong:
        return f"There is nothing to correlate yet: {runs} runs count."
    targets = list(dict.fromkeys(f.target for f in strong))
    parts = []
    for verdict in ("predicts", "predicts the opposite"):
        words = VERDICT_WORDS[verdict]
        by_names: dict[tuple[str, ...], list[str]] = {}  # targets of the same measures stand together
        for target in targets:
            names = tuple(f.measure for f in strong if f.target == target and f.verdict == verdict)
            by_names.setdefault(names, []).append(target)
        for names, together in by_names.items():
            plural = words if len(names) == 1 else words.replace("predicts", "predict", 1)
            parts += [f"{listed(names)} {plural} {listed(together)}"] if names else []
    none, open_ = ([f for f in strong if f.verdict == v] for v in ("no sign of it", "cannot tell"))
    if len(open_) == len(strong):
        able = [f.smallest_detectable_tau for f in open_ if isfinite(f.smallest_detectable_tau)]
        limit = f"they show a tau of {min(able):.2f} or more" if able else "no tau could be significant with so few"
        return f"{pool} cannot tell whether sharpness predicts {listed(targets)}: {limit}."
    rest = [f"no sign of it in {len(none)} of {len(strong)} combinations of measure and target"] if none else []
    rest += [f"{pool} cannot tell in {len(open_)} of {len(strong)}"] if open_ else []
    others = f"{'otherwise ' if parts else ''}{' and '.join(rest)}"
    if not parts:
        return f"No measure predicts {listed(targets, 'or')} here: {others}."
    return f"{'; '.join(parts)}{'; ' + others if rest else f' ({pool})'}."


def of_comparison(c: Comparison) -> str:
    """One sentence on one contender and target."""
    reference = PLAIN_WORDS.get(c.reference, c.reference)
    if not c.pairs:
        return f"Cannot tell whether {c.contender} is better than {reference} in {c.target}: {c.why}."
    numbers = f"{amount(c.target, c.mean)} and {amount(c.target, c.reference_mean)}, difference " + difference_words(c)
    record = f"{c.wins} of {c.pairs} pairs won, {c.losses} lost"
    warning = f" Note: {c.warning}." if c.warning else ""
    if c.verdict in ("better", "worse"):
        return f"{c.contender} is {c.verdict} than {reference} in {c.target} ({numbers}; {record}).{warning}"
    claim = f"between {c.contender} and {reference} in {c.target} ({numbers}; {record})"
    if c.verdict == "no difference seen":
        return f"No difference seen {claim}: {c.why}.{warning}"
    return f"Cannot tell the difference {claim}: {c.why}.{warning}"


def difference_words(c: Comparison) -> str:
    """The difference with its interval."""
    shown = amount(c.target, c.difference, signed=True)
    if not isfinite(c.low):
        return f"{shown}, no interval"
    low, high = (amount(c.target, v, signed=True).removesuffix(" points") for v in (c.low, c.high))
    return f"{shown}, 95 % interval {low} to {high}"


def of_methods(rows: Sequence[Comparison], reference: str, note: str) -> str:
    """Which method won, in one sentence that names the contenders."""
    if not rows:
        return f"{note[0].upper()}{note[1:]}." if note else ""
    name = PLAIN_WORDS.get(reference, reference)
    parts = []
    for target in dict.fromkeys(c.target for c in rows):
        mine = [c for c in rows if c.target == target]
        verdicts = []
        for verdict in ("better", "worse"):
            chosen = sorted((c for c in mine if c.verdict == verdict), key=lambda c: c.difference)
            if chosen:
                each = (f"{c.contender} ({amount(target, c.difference, signed=True)})" for c in chosen)
                verdicts.append(f"{listed(each)} {'is' if len(chosen) == 1 else 'are'} {verdict}")
        for verdict in ("no difference seen", "cannot tell"):
            chosen = [c for c in mine if c.verdict == verdict]
            over = {c.configurations for c in chosen if c.configurations > 1}  # a verdict is on all of them together
            where = f" over {max(over)} configurations" if over else ""
            verdicts += [f"{verdict} for {len(chosen)} of {len(mine)}{where}"] if chosen else []
        parts.append(f"in {target}, {', '.join(verdicts)}")
    remark = f" ({note})" if note else ""
    warned = list(dict.fromkeys(c.contender for c in rows if c.warning and c.verdict in ("better", "worse")))
    warning = f" Training errors or losses differ for {listed(warned)}." if warned else ""
    return f"Compared with {name}{remark}: {'; '.join(parts)}.{warning}"
