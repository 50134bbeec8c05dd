"""The findings of a study in the terminal: tables, sentences and failures."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .._util.numbers import span
from .output import FAILED, Output, stop_code, table

if TYPE_CHECKING:
    from ..studies.compared import Compared
    from ..studies.plan import Study
    from ..studies.result import StudyResult
    from ..studies.statistics.findings import Findings
    from ..studies.statistics.predictions import Finding

SHORT = {"predicts the opposite": "opposite", "weaker than 0.5": "weaker", "no relevant difference": "no difference"}


def heading(study: Study) -> list[str]:
    """The study's title, question and notes, with an empty line after them; nothing without them."""
    # lines of a file are broken where its editor was, not where this terminal is; an empty line ends a paragraph
    notes = "\n\n".join(" ".join(part.split()) for part in study.notes.split("\n\n"))
    texts = [text for text in (study.title, study.question, notes) if text]
    return ["\n".join(texts) + "\n"] if texts else []


def output_of(study: Study, result: StudyResult) -> Output:
    """The result of a study as output: its heading, tables, sentences and failures."""
    findings = result.findings
    shown: list[Any] = heading(study)
    shown += [_predictions(study, findings), ""] if findings.findings else []
    if any(c.pairs for c in findings.comparisons):
        marked = any(c.warning for c in findings.comparisons if c.pairs)
        shown += [
            _comparisons(findings),
            *(["* Their training differs too: see below, or the page."] if marked else []),
            "",
        ]
    if result.tables:
        from ..studies.compared import compare

        shown += shown_tables(compare(result.tables, {}))
    shown += list(result.words)
    shown += [f"The page: {result.report}"] if result.report else []
    return Output(result.to_dict(), shown, error_lines("study", result), exit_code(result))


def error_lines(command: str, result: StudyResult) -> list[str]:
    """The failures of a study, and how to resume one that was stopped."""
    lines = [f"{name} failed: {error}" for name, error in result.failures.items()]
    if result.stopped:
        lines.append(f"stopped ({result.stopped}); rerun the command to resume in {result.folder}")
    return [f"steppe {command}: {line}" for line in lines]


def exit_code(result: StudyResult) -> int:
    """The exit code of a command that ran a study."""
    return stop_code(result.stopped) if result.stopped else FAILED if result.failures else 0


def shown_tables(tables: Sequence[Compared]) -> list[Any]:
    """Tables of results, each with its remarks."""
    from ..studies.compared import lines, remarks

    shown: list[Any] = []
    for one in tables:
        heads, rows = lines(one)
        shown += [table((one.name, *heads[1:]), rows), "", *remarks(one), ""]
    return shown


def _predictions(study: Study, findings: Findings) -> Any:
    """One part per target. Numbers and verdicts stay whole in 80 columns: names fold first."""
    from ..studies.statistics.sentences import chance, tau_words

    grouped = any(f.hypothesis == "within groups" for f in findings.findings)
    within = f"within {', '.join(study.groups)}"
    heads = ["measure", "tau", "95 % interval", "corrected p", "strong", *([within] if grouped else []), "weak"]
    cells: list[tuple[object, ...]] = []
    for target in dict.fromkeys(f.target for f in findings.findings):
        rows = [f for f in findings.findings if f.target == target]
        strong = [f for f in rows if f.hypothesis == "strong"]
        cells.append((f"{target} ({span([f.n for f in strong])} runs{_power(strong)})",))
        for f in strong:
            verdicts = [SHORT.get(g.verdict, g.verdict) for g in rows if g.measure == f.measure]
            interval = f"{tau_words(f.low)} to {tau_words(f.high)}" if isfinite(f.low) else "none"
            p = chance(f.p_corrected) if isfinite(f.p_corrected) else ""
            cells.append((f"  {f.measure}", tau_words(f.tau) if isfinite(f.tau) else "", interval, p, *verdicts))
    return table(
        heads, cells, right=("tau", "corrected p"), fold=("measure", within), drop=("weak", within, "corrected p")
    )


def _power(strong: Sequence[Finding]) -> str:
    """What the runs could have shown of a target."""
    able = [f.smallest_detectable_tau for f in strong if isfinite(f.smallest_detectable_tau)]
    return f"; detectable tau {max(able):.2f}" if able else "; too few for a verdict"


def _comparisons(findings: Findings) -> Any:
    """Every contender against the reference, one part per target."""
    from ..studies.statistics.sentences import amount

    heads = [f"compared with {findings.reference}", "difference", "95 % interval", "won/lost", "cost", "verdict"]
    cells: list[tuple[object, ...]] = []
    for target in dict.fromkeys(c.target for c in findings.comparisons):
        rows = [c for c in findings.comparisons if c.target == target]
        unit = " (points)" if amount(target, 0, signed=True).endswith("points") else ""
        cells.append((f"{target}{unit}",))
        for c in (c for c in rows if c.pairs):
            value, low, high = (
                amount(target, v, signed=True).removesuffix(" points") for v in (c.difference, c.low, c.high)
            )
            interval = f"{low} to {high}" if isfinite(c.low) else "none"
            ratio = c.passes / c.reference_passes if c.reference_passes else float("nan")
            cost = f"{ratio:.3g}x" if isfinite(ratio) else ""
            verdict = SHORT.get(c.verdict, c.verdict) + ("*" if c.warning else "")
            cells.append((f"  {c.contender}", value, interval, f"{c.wins}/{c.losses}", cost, verdict))
    return table(heads, cells, right=("difference", "won/lost", "cost"), fold=heads[:1], drop=("cost", "won/lost"))
