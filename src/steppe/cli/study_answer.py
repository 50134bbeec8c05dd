"""What `steppe study` prints: a table of correlations, sentences, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from .answer import Answer, add, table
from .trouble import FAILED, STOPPED

if TYPE_CHECKING:
    from ..studies.finding import Finding, Held
    from ..studies.plan import Study

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


def _table(study: Study, held: Sequence[Held]) -> Any:
    grouped = any(h.correlation.within is not None for h in held)
    heads = ["target", "measure", "tau", "95 % interval", "p", "corrected p", "n"]
    heads += [f"tau within {', '.join(study.groups)}"] if grouped else []
    shown = table(*heads, "strong", "weak", right=("tau", "p", "corrected p", "n", heads[-1]))
    before = ""
    for h in held:
        c, tau = h.correlation, h.correlation.pooled
        cells = [c.measure, f"{tau.tau:+.2f}", _span(tau), _p(tau.p), _p(tau.adjusted), tau.n]
        cells += [f"{c.within.tau:+.2f}" if c.within else ""] if grouped else []
        add(shown, "" if c.target == before else c.target, *cells, h.strong.verdict, h.weak.verdict)
        before = c.target
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
