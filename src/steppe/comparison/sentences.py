"""The sentences of a comparison: every number in them is a field of its result."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .result import Answer, Recommended, Result

PLAIN = "the plain optimizer"
OFF = 0.05  # relative deviation of the cost from the planned one that is worth a warning


def words_of(time: float) -> str:
    """Return a time in words, such as 5.1 h."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if time >= 1.5 * size:
            return f"{time / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{time:.0f} s" if time >= 10 else f"{time:.1f} s"


def short(value: Any) -> str:
    """Return the value of a setting as sentences and tables have it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def named(method: str) -> str:
    """Return a method's name in a sentence."""
    return PLAIN if method == "none" else method


def sentence_of(a: Answer, result: Result) -> str:
    """Return the sentence of an answer."""
    reference = named(result.methods[0])
    costs = {row.method: row.passes for row in result.rows}
    equal = f"at equal {result.axis}"
    if result.axis == "epochs":
        equal += f" (at {costs[a.method] / costs[result.methods[0]]:.3g} times the cost)"
    count = len(result.methods) - 1
    effort = f"each with {result.tuning} trials of tuning; {a.trials} trials, {count} contender{'s' * (count > 1)}"
    worth, shows, difference = (_points(a, x) for x in (a.worth, a.detectable, abs(a.difference)))
    inner = f"{_points(a, a.inner_low, '+')} to {_points(a, a.inner_high, '+')}"
    told = f"{a.method} against {reference}: {known(a)} {equal}"
    edges = f"the selected trials lie at the edge of {', '.join(a.edges)}"
    low, high = (_points(a, x) for x in sorted((abs(a.low), abs(a.high))))
    longer, rows = "", f"{result.test_rows:,} test rows"
    if a.trials < a.needed < inf:
        longer = f"; deciding {worth} takes about {float(f'{a.needed:.2g}'):,.0f} trials ({words_of(a.needed_seconds)})"
    elif a.needed == inf:
        longer = f"; with these {rows}, no number of trials can show less than about {_points(a, a.row_limit)}"
    failed = " and ".join(r.method for r in result.rows if r.failed == r.trials)
    why = f"{a.method} came when the level was used: a new comparison decides it"
    if result.points:
        why = "the settings of the trials are not random, and a comparison at random ones decides it"
    found = {
        "better": f"{a.method} is better than {reference} {equal}, by {difference} points ({low} to {high}), {effort}.",
        "worse": f"{a.method} is worse than {reference} {equal}, by {difference} points ({low} to {high}), {effort}.",
        "no difference": f"{a.method} and {reference} differ by less than {worth} points ({inner}) {equal}, {effort}.",
        "cannot tell": f"Cannot tell whether {a.method} is better than {reference} (search space): {edges}. Widen it.",
        "failed": f"Cannot tell: {failed} failed in all {a.trials} trials. Give a space with lower learning rates.",
        "open": f"Not decided yet: {told}, after {a.trials} of {result.trials} trials"
        f"{f'; {edges}' if a.edges else ''}.",
        "described": f"Described only: {told}, {effort}; {why}.",
        "rows": f"Undecided, and more training cannot decide it: {told}. These {rows} can show about "
        f"{_points(a, a.row_limit)} at best, and {worth} would be worth a change.",
        "undecided": f"Undecided: {told}, {effort}. This many trials can show {shows} points{longer}.",
    }
    if a.verdict == "undecided":
        return found["described" if not a.level else "rows" if a.why == "rows" else "undecided"]
    return found["failed" if a.why == "failed" else a.verdict]


def known(a: Answer) -> str:
    """Return the difference with its interval, in points."""
    ends = f"{_points(a, a.low, '+')} to {_points(a, a.high, '+')}"
    return f"{_points(a, a.difference, '+')} points ({ends})"


def recommendation(r: Recommended) -> str:
    """Return the sentence of a recommended configuration."""
    settings = ", ".join(f"{k}={short(v)}" for k, v in {**r.settings, **r.options, "epochs": r.epochs}.items())
    sd = f" (sd {r.sd:.1f})" if isfinite(r.sd) else ""
    error = f": {r.error:.1f} % test error{sd} over {r.seeds} fresh seeds" if isfinite(r.error) else ""
    return f"Recommended: {named(r.method)} with {settings}{error} ({r.why})."


def caveats_of(result: Result) -> list[str]:
    """Return what the answers hold for, and what disturbs them."""
    space = "; ".join(f"{name} {law}" for name, law in result.space.items())
    found = [
        f"Space: {space}.",
        "Differences are in points of test error. A verdict accounts for all looks and all contenders, an interval for "
        'all looks at its contender. With "no difference", the interval is the narrower one of two one-sided tests.',
    ]
    if not result.alone:
        found.append("Several runs shared the machine: their times do not compare methods. With --workers 1 they do.")
    for row in result.rows:
        plain = result.rows[0]
        if row.failed:
            what = "a constant prediction" if "data" in result.task else "wrong on every row"
            found.append(f"{row.method}: {row.failed} of {row.trials} trials failed, and count as {what}.")
        if row.stopped:
            found.append(f"{row.method}: {row.stopped} of {row.trials} trials stopped after a third of their epochs.")
        if row.counted and plain.counted and abs(row.counted / plain.counted / row.passes * plain.passes - 1) > OFF:
            found.append(
                f"{row.method} took {row.counted:.2f} passes per step and {plain.method} {plain.counted:.2f}; planned "
                f"were {row.passes:.2f} and {plain.passes:.2f}: the cost is not equal."
            )
        if abs(row.share - 1) > OFF:
            found.append(
                f"{row.method} has {row.share:.2f} times the passes: choose epochs that {row.passes:g} divides."
            )
        if row.edges:
            found.append(f"The best trials of {row.method} lie at the edge of its own space: {', '.join(row.edges)}.")
    return found


def table_of(result: Result) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the heads and lines of a result's table: a column per method, which fits narrow screens."""
    answers = {a.method: a for a in result.contrasts}
    trials = sorted({n for a in result.contrasts for n, *_ in a.forecast if a.verdict in ("open", "undecided")})
    verdict, difference, interval = "verdict", "difference of test error, points", "  interval, for all looks"
    first = (verdict, difference, interval, *(f"{n} trials could show (time)" for n in trials))
    lines: dict[str, dict[str, str]] = {name: {} for name in first}
    for row in result.rows:

        def add(name: str, value: str, method: str = row.method) -> None:
            lines.setdefault(name, {})[method] = value

        a = answers.get(row.method)
        add(verdict, "reference" if row is result.rows[0] else "" if a is None else a.verdict)
        if a is not None:
            add(difference, _signed(a.difference))
            add(interval, f"{_signed(a.low)} to {_signed(a.high)}")
            if a.verdict in ("open", "undecided"):
                for n, shows, time in a.forecast:
                    add(f"{n} trials could show (time)", f"{shows:.1f} ({words_of(time)})")
        tunings = {1: row.curve[0][1], result.tuning: row.tuned, len(row.curve): row.curve[-1][1]}
        for n, error in sorted(tunings.items()):
            add(f"test error, {f'best of {n} trials' if n > 1 else 'one trial'}, %", f"{error:.2f}")
        add("trials (failed)", f"{row.trials} ({row.failed})")
        add("passes per step", f"{row.counted or row.passes:.2f}")
        add(f"time per trial{'' if result.alone else ', shared machine'}", words_of(row.seconds))
        if (r := row.reached) is not None:
            low, high = (f"{x:.1f}" if isfinite(x) else "never" for x in (r.passes_low, r.passes_high))
            # a row of its own explains the next: a method's column stays narrow
            target = f"validation error {result.target:.1f} % reached"
            add(target, f"{100 * r.share:.0f} %")
            add("  passes until half of them do", f"{r.passes:.1f}" if isfinite(r.passes) else "never")
            add("  95 % interval", low if low == high else f"{low} to {high}")
            if result.alone:
                add("  time until half of them do", words_of(r.seconds) if isfinite(r.seconds) else "never")
        for name, (value, low_, high_) in row.measures.items():
            add(name, short(value))
            add(f"  95 % interval of {name}", f"{short(low_)} to {short(high_)}")
        for name, value in row.best.items():
            add(f"best trial: {name}", short(value))
    methods = [row.method for row in result.rows]
    return ("", *methods), [(name, *(cells.get(m, "") for m in methods)) for name, cells in lines.items()]


def _signed(x: float) -> str:
    return f"{x:+.2f}".replace("-", "\u2212")


def _points(a: Answer, x: float, sign: str = "") -> str:
    """Write a difference with as many decimals as `worth` needs, and with a minus sign."""
    return f"{x + 0.0:{sign}.{1 if a.worth >= 0.1 else 2}f}".replace("-", "\u2212") if isfinite(x) else "any"
