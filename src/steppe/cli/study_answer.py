"""What `steppe study` prints: a table of correlations, sentences, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .answer import Answer, add, table
from .trouble import FAILED, STOPPED

if TYPE_CHECKING:
    from ..studies.plan import Study
    from ..studies.statistics.findings import Comparison, Finding

SAID = {"supported": "yes", "not supported": "no", "contradicted": "contrary"}  # verdicts in a narrow column
LATER = 75  # EX_TEMPFAIL of sysexits.h, as for runs: the same command goes on


def answer(study: Study, found: Finding) -> Answer:
    """How far a study is and what it says."""
    shown: list[Any] = []
    if found.held:
        shown = [_table(study, found.held), ""]
    shown += list(found.words)
    shown += [f"The page: {found.report}"] if found.report else []
    trouble = [f"steppe study: {name} failed: {error}" for name, error in found.failures.items()]
    code = FAILED if found.failures else 0
    if found.stopped:
        trouble.append(f"steppe study: stopped ({found.stopped}); the same command goes on in {found.folder}")
        code = STOPPED if "SIGINT" in found.stopped else LATER
    return Answer(found.to_dict(), shown, trouble, code)


def _table(study: Study, held: Sequence[Comparison]) -> Any:
    """A part for each target. Numbers are whole in 80 columns: names fold first."""
    grouped = any(h.correlation.within is not None for h in held)
    within = f"within {', '.join(study.groups)}"
    heads = ["measure", "tau", "95 % interval", "corrected p", *([within] if grouped else []), "strong", "weak"]
    shown = table(*heads, right=("tau", "corrected p", within), fold=("measure", "corrected p", within))
    shown.padding = (0, 1, 0, 0)
    for target in dict.fromkeys(h.correlation.target for h in held):
        mine = [h for h in held if h.correlation.target == target]
        n = sorted({h.correlation.pooled.n for h in mine})
        add(shown, f"{target} (n = {n[0] if len(n) == 1 else f'{n[0]} to {n[-1]}'})")
        for h in mine:
            c, tau = h.correlation, h.correlation.pooled
            cells = [f"  {c.measure}", f"{tau.tau:+.2f}", _span(tau), _p(tau.adjusted)]
            cells += [f"{c.within.tau:+.2f}" if c.within else ""] if grouped else []
            add(shown, *cells, SAID.get(h.strong.verdict, h.strong.verdict), SAID.get(h.weak.verdict, h.weak.verdict))
    return shown


def _span(tau: Any) -> str:
    return f"{tau.low:+.2f} to {tau.high:+.2f}" if isfinite(tau.low) else "none"


def _p(p: float) -> str:
    return f"{p:.2g}" if isfinite(p) else ""


def cells_table(rows: Sequence[dict[str, Any]]) -> Any:
    """Cells with their state, and what went wrong."""
    shown = table("cell", "state", "run", "error", fold=("error", "run"))
    for row in rows:
        add(shown, row["key"], row["state"], row["name"], row.get("error", ""))
    return shown
