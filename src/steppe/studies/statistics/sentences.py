"""Findings in plain English, for terminal and page alike: they quote numbers and verdicts, and decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from .comparisons import Comparison
from .design import METHOD, plural
from .predictions import Finding

IN_PERCENT = ("error", "gap")  # how names of targets end that are shares of rows; `loss_gap` is none
FEW = 3  # names that a sentence lists
SAME_COST = 0.05  # a relative difference in passes that is not worth a word
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
    """Tau with interval, corrected p and the size of the pool, down to its smallest sample."""
    span = f"95 % interval {tau_words(f.low)} to {tau_words(f.high)}" if isfinite(f.low) else "no interval"
    p = f"corrected {p_words(f.p_corrected)}" if isfinite(f.p_corrected) else "no p"
    few = f", {f.levels} {plural(f.sample)}" if f.sample else ""
    return f"tau {tau_words(f.tau)}, {span}, {p}, {runs_words(f.n, f.configurations)}{few}"


def runs_words(runs: int, configurations: int) -> str:
    """The size of a pool."""
    counts = ((runs, "run"), (configurations, "configuration"))
    return " of ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)


def through(f: Finding) -> str:
    """What a relation lives on, if nothing of it is left among runs that have that in common; else empty."""
    gone = f.confounding.vanishes(f.tau) if f.verdict.startswith("predicts") else []
    if METHOD in gone:
        return "between methods only"
    return f"through {THE.get(gone[0], gone[0])}" if gone else ""


def of_finding(f: Finding) -> str:
    """One sentence on one measure, target and hypothesis, and one on what a relation lives on."""
    where = " within groups" if f.hypothesis == "within groups" else ""
    flat = f"the flattest {f.flattest} runs by {f.measure} have a"
    claim, opposite = f"{f.measure} predicts {f.target}{where}", f"flatter runs have a higher {f.target}{where}"
    if f.hypothesis == "weak":
        than = f"{f.target} than the rest ({amount(f.target, f.mean_flattest)} and {amount(f.target, f.mean_rest)})"
        claim, opposite = f"{flat} lower {than}", f"{flat} higher {than}"
    if not f.pairs:
        return f"Cannot tell whether {claim if f.flattest else f'{f.measure} predicts {f.target}'}: {f.why}."
    numbers, only = f"({numbers_of(f)})", f" {through(f)}" if through(f) else ""
    if f.verdict == "predicts":
        whole = claim[0].upper() + claim[1:] if f.hypothesis == "weak" else claim
        return f"{whole}{only} {numbers}.{_left_of(f)}"
    if f.verdict == "predicts the opposite":
        return f"{f.measure} predicts the opposite{only}: {opposite} {numbers}.{_left_of(f)}"
    if f.verdict == "weaker than 0.5":
        return f"Weaker than {_bound(f)}: that {claim} {numbers}."
    return f"Cannot tell whether {claim} {numbers}: {f.why}; {power_of(f)}."


def _bound(f: Finding) -> str:
    """What "weaker than 0.5" excludes; ties limit tau, and half of the largest is excluded then."""
    tied = f" (half of the {f.attainable:.2f} that ties allow)" if f.attainable < 0.995 else ""
    return f"{f.bound:.2g}{tied}"


def _left_of(f: Finding) -> str:
    """What is left of a relation within the levels of factors, and given the training loss."""
    parts = [(f"within {plural(w.setting)}", w) for w in f.confounding.within if isfinite(w.low)]
    parts += [("given the training loss", f.confounding.given_loss)] if f.confounding.given_loss else []
    each = [f"{tau_words(w.tau)} {where} ({tau_words(w.low)} to {tau_words(w.high)})" for where, w in parts]
    return f" tau is {listed(each)}." if each else ""


def power_of(f: Finding) -> str:
    """What this pool could have shown, and what it would take to show half of the attainable tau."""
    if not isfinite(f.smallest_detectable_tau):
        return f"no tau can be significant with {f.levels} {plural(f.sample)}"
    shown = f"a tau of {f.smallest_detectable_tau:.2f} is shown with 80 % power"
    if f.needed <= f.levels:
        return shown
    runs = round(f.n * (f.needed / f.levels - 1))
    return f"{shown}, and {_bound(f)} with about {f.needed} {plural(f.sample)} ({more_runs(runs, f.seconds)})"


def more_runs(runs: int, seconds: float) -> str:
    """A number of further runs, with their hours where the time of one is known."""
    hours = f", {runs * seconds / 3600:.2g} h of training" if isfinite(seconds) else ""
    return f"{runs} more run{'' if runs == 1 else 's'}{hours}"


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
    "weaker than 0.5": "is related more weakly than 0.5 to",
    "cannot tell": "cannot tell for",
}
THE = {"lr": "the learning rate", "seed": "the seed"}


def _with_tau(f: Finding) -> str:
    span = f", {tau_words(f.low)} to {tau_words(f.high)}" if isfinite(f.low) else ""
    only = f", {through(f)}" if through(f) else ""
    return f"{f.target} (tau {tau_words(f.tau)}{span}{only})" if isfinite(f.tau) else f.target


def of_study(rows: Sequence[Finding], runs: int, configurations: int) -> str:
    """Whether sharpness predicts generalisation in this study, in one sentence that names the measures."""
    strong = [f for f in rows if f.hypothesis == "strong"]
    if not strong:
        return f"There is nothing to correlate yet: {runs} runs count."
    few = {(f.levels, f.sample) for f in strong if f.sample and f.levels}
    pool = runs_words(runs, configurations) + (f", {min(few)[0]} {plural(min(few)[1])}" if few else "")
    targets = list(dict.fromkeys(f.target for f in strong))
    parts = []
    for verdict in ("predicts", "predicts the opposite"):
        words = VERDICT_WORDS[verdict]
        by_names: dict[tuple[tuple[str, ...], str], list[str]] = {}  # targets of the same measures stand together
        for target in targets:
            told = [f for f in strong if f.target == target and f.verdict == verdict]
            for only in dict.fromkeys(through(f) for f in told):
                names = tuple(f.measure for f in told if through(f) == only)
                by_names.setdefault((names, only), []).append(target)
        for (names, only), together in by_names.items():
            plural_words = words if len(names) == 1 else words.replace("predicts", "predict", 1)
            parts.append(" ".join(filter(None, (listed(names), plural_words, listed(together), only))))
    none, open_ = ([f for f in strong if f.verdict == v] for v in ("weaker than 0.5", "cannot tell"))
    if len(open_) == len(strong):
        able = [f.smallest_detectable_tau for f in open_ if isfinite(f.smallest_detectable_tau)]
        limit = f"they show a tau of {min(able):.2f} or more" if able else "with so few, no tau can be significant"
        return f"{pool} cannot tell whether sharpness predicts {listed(targets)}: {limit}."
    rest = [f"weaker than 0.5 in {len(none)} of {len(strong)} combinations of measure and target"] if none else []
    measures = [f.measure for f in open_] if len(targets) == 1 else []
    which = _which("by", measures) or f"in {len(open_)} of {len(strong)}"
    rest += [f"cannot tell {which}"] if open_ else []
    if not parts:
        return f"No measure predicts {listed(targets, 'or')} here: {' and '.join(rest)} ({pool})."
    return f"{'; '.join([*parts, *rest])} ({pool})."


def of_comparison(c: Comparison) -> str:
    """One sentence on one contender and target."""
    reference = PLAIN_WORDS.get(c.reference, c.reference)
    if not c.pairs:
        return f"Cannot tell whether {c.contender} is better than {reference} in {c.target}: {c.why}."
    numbers = f"{amount(c.target, c.mean)} and {amount(c.target, c.reference_mean)}, difference {difference_words(c)}"
    if c.unpaired:
        record = f"unpaired, {c.unpaired}"
    else:
        record = f"{c.wins} of {c.pairs} pairs won, {c.losses} lost"
        if isfinite(c.improvement_low):
            low, high = (round(100 * v) for v in (c.improvement_low, c.improvement_high))
            record += f", better in {100 * c.improvement:.0f} % ({low} to {high})"
    warning = f" Note: {c.warning}." if c.warning else ""
    if c.verdict in ("better", "worse"):
        return f"{c.contender} is {c.verdict} than {reference} in {c.target}{terms(c)} ({numbers}; {record}).{warning}"
    claim = f"between {c.contender} and {reference} in {c.target}{terms(c)} ({numbers}; {record})"
    if c.verdict == "no relevant difference":
        return f"No difference larger than {bound_words(c)} {claim}.{warning}"
    return f"Cannot tell the difference {claim}: {c.why}{_needed(c)}.{warning}"


def terms(c: Comparison) -> str:
    """What the two do not share: settings that were selected for each, and cost."""
    ratio = c.passes / c.reference_passes if c.reference_passes else 1.0
    parts = ["at the settings selected for each"] if c.selected else []
    parts += [f"with {ratio:.2g} times the passes"] if isfinite(ratio) and abs(ratio - 1) > SAME_COST else []
    return f", {listed(parts)}" if parts else ""


def bound_words(c: Comparison) -> str:
    """The relevant difference as people write it."""
    return amount(c.target, c.bound, signed=True).removeprefix("+")


def _needed(c: Comparison) -> str:
    """What it would take to show a relevant difference."""
    if not c.levels:
        return ""
    if not c.needed:
        rows = ": it takes more test rows" if c.rows > c.error / 2 else ""
        return f"; more {plural(c.sample)} alone would not show {bound_words(c)}{rows}"
    if c.needed == c.levels:
        return ""
    runs = round(c.runs * (c.needed / c.levels - 1))
    seconds = (c.seconds + c.reference_seconds) / 2
    more = f"about {c.needed} {plural(c.sample)} instead of {c.levels} ({more_runs(runs, seconds)})"
    return f"; {more} would show {bound_words(c)}"


def difference_words(c: Comparison) -> str:
    """The difference with its interval."""
    shown = amount(c.target, c.difference, signed=True)
    if not isfinite(c.low):
        return f"{shown}, no interval"
    low, high = (amount(c.target, v, signed=True).removesuffix(" points") for v in (c.low, c.high))
    return f"{shown}, 95 % interval {low} to {high}"


def of_methods(rows: Sequence[Comparison], reference: str, note: str) -> str:
    """Which contender won, in one sentence that names them."""
    if not rows:
        return f"{note[0].upper()}{note[1:]}." if note else ""
    name = PLAIN_WORDS.get(reference, reference)
    parts = []
    for target in dict.fromkeys(c.target for c in rows):
        mine = [c for c in rows if c.target == target]
        verdicts = list[str]()  # the first one says what is compared with what, and where
        for verdict in ("better", "worse"):
            chosen = sorted((c for c in mine if c.verdict == verdict), key=lambda c: c.difference)
            if chosen:
                each = (f"{c.contender} ({amount(target, c.difference, signed=True)})" for c in chosen)
                than = "" if verdicts else f" than {name} in {target}"
                verdicts.append(f"{listed(each)} {'is' if len(chosen) == 1 else 'are'} {verdict}{than}")
        same, open_ = ([c for c in mine if c.verdict == v] for v in ("no relevant difference", "cannot tell"))
        largest = max(same, key=lambda c: c.bound, default=None)
        where = _over(same)
        if largest is not None:
            than = f" from {name} in {target}" if not verdicts else ""
            size = f"larger than {bound_words(largest)}"
            verdicts.append(f"no difference{than} {size} for {len(same)} of {len(mine)}{where}")
        many = "all" if len(open_) == len(mine) else f"{len(open_)} of"
        which = _which("for", [c.contender for c in open_]) or f"for {many} {len(mine)}"
        than = "" if verdicts else f" the difference from {name} in {target}"
        verdicts += [f"cannot tell{than} {which}{_over(open_)}"] if open_ else []
        parts += verdicts
    told = "; ".join(parts)
    if told.startswith(("no difference", "cannot tell")):  # and not with a name
        told = f"{told[0].upper()}{told[1:]}"
    remark = f" {note[0].upper()}{note[1:]}." if note else " Each has the settings selected for it." * rows[0].selected
    warned = list(dict.fromkeys(c.contender for c in rows if c.warning and c.verdict in ("better", "worse")))
    warning = f" Training errors or losses differ for {listed(warned)}." if warned else ""
    return f"{told}.{remark}{warning}"


def _which(before: str, names: Sequence[str]) -> str:
    """The names, if they are few; else an empty text."""
    return f"{before} {listed(names)}" if 0 < len(names) <= FEW else ""


def _over(rows: Sequence[Comparison]) -> str:
    """The configurations that a verdict is on, all of them together."""
    over = {c.configurations for c in rows if c.configurations > 1}
    return f" over {max(over)} configurations" if over else ""


def of_rows(rows: Sequence[Finding | Comparison]) -> str:
    """Which errors hold the test rows; empty without any target."""
    inside, outside = (
        list(dict.fromkeys(r.target for r in rows if isfinite(r.low) and isfinite(r.rows) is known))
        for known in (True, False)
    )
    outside = [name for name in outside if name not in inside]
    parts = [f"Intervals of {listed(inside)} include the choice of test samples"] if inside else []
    if outside:
        which = "those of {} do not" if inside else "intervals of {} do not include the choice of test samples"
        parts.append(f"{which.format(listed(outside))}: no rows are stored")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""
