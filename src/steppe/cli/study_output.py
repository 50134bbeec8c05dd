"""The findings of a study in the terminal: tables, sentences and failures."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .errors import FAILED, STOPPED
from .output import Output, add_row, table

if TYPE_CHECKING:
    from ..papers.render import Compared
    from ..studies.plan import Study
    from ..studies.result import StudyResult
    from ..studies.statistics.findings import Findings
    from ..studies.statistics.predictions import Finding

SHORT = {"predicts the opposite": "opposite", "no sign of it": "no sign", "no difference seen": "no difference"}
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h, as for runs: rerun the command to resume


def heading(study: Study) -> list[str]:
    """The study's title, question and notes, with an empty line after them; nothing without them."""
    texts = [text for text in (study.title, study.question, study.notes) if text]
    return ["\n".join(texts) + "\n"] if texts else []


def output_of(study: Study, result: StudyResult) -> Output:
    """The result of a study as output: its heading, tables, sentences and failures."""
    findings = result.findings
    shown: list[Any] = heading(study)
    shown += [_predictions(study, findings), ""] if findings.findings else []
    shown += [_comparisons(findings), ""] if any(c.pairs for c in findings.comparisons) else []
    if result.tables:
        from ..papers.render import compare

        shown += shown_tables(compare(result.tables, {}))
    shown += list(result.words)
    shown += [f"The page: {result.report}"] if result.report else []
    errors = [f"steppe study: {name} failed: {error}" for name, error in result.failures.items()]
    if result.stopped:
        errors.append(f"steppe study: stopped ({result.stopped}); rerun the command to resume in {result.folder}")
    return Output(result.to_dict(), shown, errors, exit_code(result))


def exit_code(result: StudyResult) -> int:
    """The exit code of a command that ran a study."""
    if result.stopped:
        return STOPPED if "SIGINT" in result.stopped else TRY_AGAIN
    return FAILED if result.failures else 0


def shown_tables(tables: Sequence[Compared]) -> list[Any]:
    """Tables of results, each with its remarks."""
    from ..papers.render import lines, remarks

    shown: list[Any] = []
    for one in tables:
        heads, rows = lines(one)
        listed = table(one.name, *heads[1:])
        for row in rows:
            add_row(listed, *row)
        shown += [listed, "", *remarks(one), ""]
    return shown


def _predictions(study: Study, findings: Findings) -> Any:
    """One part per target. Numbers and verdicts stay whole in 80 columns: names fold first."""
    from ..studies.statistics.sentences import chance, tau_words

    grouped = any(f.hypothesis == "within groups" for f in findings.findings)
    within = f"within {', '.join(study.groups)}"
    heads = ["measure", "tau", "95 % interval", "corrected p", "strong", *([within] if grouped else []), "weak"]
    shown = table(*heads, right=("tau", "corrected p"), fold=("measure", "corrected p", within))
    shown.padding = (0, 1, 0, 0)
    for target in dict.fromkeys(f.target for f in findings.findings):
        rows = [f for f in findings.findings if f.target == target]
        strong = [f for f in rows if f.hypothesis == "strong"]
        add_row(shown, f"{target} ({_span([f.n for f in strong])} runs{_power(strong)})")
        for f in strong:
            verdicts = [SHORT.get(g.verdict, g.verdict) for g in rows if g.measure == f.measure]
            interval = f"{tau_words(f.low)} to {tau_words(f.high)}" if isfinite(f.low) else "none"
            p = chance(f.p_corrected) if isfinite(f.p_corrected) else ""
            add_row(shown, f"  {f.measure}", tau_words(f.tau) if isfinite(f.tau) else "", interval, p, *verdicts)
    return shown


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _power(strong: Sequence[Finding]) -> str:
    """What the runs could have shown of a target."""
    able = [f.smallest_detectable_tau for f in strong if isfinite(f.smallest_detectable_tau)]
    return f"; detectable tau {max(able):.2f}" if able else "; too few for a verdict"


def _comparisons(findings: Findings) -> Any:
    """Every contender against the reference, one part per target."""
    from ..studies.statistics.sentences import amount

    heads = [f"compared with {findings.reference}", "difference", "95 % interval", "won/lost", "cost", "verdict"]
    shown = table(*heads, right=("difference", "won/lost", "cost"), fold=(heads[0],))
    shown.padding = (0, 1, 0, 0)
    for target in dict.fromkeys(c.target for c in findings.comparisons):
        rows = [c for c in findings.comparisons if c.target == target]
        unit = " (points)" if amount(target, 0, signed=True).endswith("points") else ""
        add_row(shown, f"{target}{unit}")
        for c in (c for c in rows if c.pairs):
            value, low, high = (
                amount(target, v, signed=True).removesuffix(" points") for v in (c.difference, c.low, c.high)
            )
            interval = f"{low} to {high}" if isfinite(c.low) else "none"
            ratio = c.passes / c.reference_passes if c.reference_passes else float("nan")
            cost = f"{ratio:.3g}x" if isfinite(ratio) else ""
            mark = "*" if c.warning else ""
            verdict = SHORT.get(c.verdict, c.verdict) + mark
            add_row(shown, f"  {c.contender}", value, interval, f"{c.wins}/{c.losses}", cost, verdict)
    return shown
