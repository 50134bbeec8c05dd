"""What SharpBalance's theorems predict beside what a simulation measures, point by point, and the gaps in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import sharpbalance as sb
from .result import Settings
from .simulation import Measured, Protocol

Row = dict[str, Any]
Case = tuple[float, float, int]  # eta, rho, k


def sam_bounds(protocol: Protocol, case: Case) -> Row:
    """What Theorem 1 says, printed with leading moments and corrected with exact ones, and the limit itself."""
    t = protocol.training(*case)
    leading, exact = t.phi.limit, t.phi.exact
    return {
        "diversity_printed": sb.diversity(t, leading),
        "diversity_exact": sb.diversity(t, exact),
        "upper_printed": sb.upper(t, leading),
        "upper": sb.upper(t, exact),
        "lower_printed": sb.lower(t, leading, sb.gap_printed(t, leading)),
        "lower_corrected": sb.lower(t, leading, sb.gap_corrected(t, leading)),
        "lower": sb.lower(t, exact, sb.gap_tight(t, exact)),
        "limit": sb.sharpness_limit(t),
    }


def part_bounds(protocol: Protocol, case: Case) -> Row:
    """What Theorem 2 says, printed and corrected, and the bound for members by themselves."""
    t, parts = protocol.training(*case), protocol.parts
    leading, exact = t.part(parts).phi.limit, t.part(parts).phi.exact
    return {
        "diversity_printed": sb.diversity_in_parts(t, parts, leading),
        "diversity_exact": sb.diversity_in_parts(t, parts, exact),
        "upper_printed": sb.upper_in_parts(t, parts, leading, printed=True),
        "upper": sb.upper_in_parts(t, parts, exact),
        "upper_alone": sb.upper_alone(t, parts, exact),
    }


def point(measure: Callable[[float, float, int], Measured], case: Case, bounds: Row) -> Row:
    """What is measured at one step size, radius and number of steps, beside what is predicted."""
    return row(measure(*case), eta=case[0], rho=case[1], k=case[2], **bounds)


def row(m: Measured, **more: Any) -> Row:
    """The means over matrices, with the standard errors of the first two."""
    values: Row = {name: float(np.mean(getattr(m, name))) for name in vars(m)}
    for name in ("diversity", "sharpness"):
        x = getattr(m, name)
        values[f"{name}_error"] = float(np.std(x, ddof=1) / len(x) ** 0.5)
    return {**more, **values}


def gap(measured: str, rows: Sequence[Row], *bounds: str) -> str:
    """How far predictions lie from the simulation, as shares of it, and by how many standard errors at most."""
    said = []
    for bound in bounds:
        share = [(r[bound] - r[measured]) / r[measured] for r in rows]
        errors = max(((r[bound] - r[measured]) / r[f"{measured}_error"] for r in rows), key=abs)
        said.append(f"{bound.replace('_', ' ')} {min(share):+.2%} to {max(share):+.2%} ({errors:+.1f} standard errors)")
    return f"From the simulated {measured}: {', '.join(said)}."


def climb(rows: Sequence[Row]) -> str:
    """How far projected ascent stays below the closed form."""
    worst = max(1 - r["climbed"] / r["sharpness"] for r in rows)
    return f"Projected ascent ends at most {worst:.1e} of the sharpness below the summit."


def data(protocol: Protocol, settings: Settings, **more: Any) -> dict[str, Any]:
    """Rows with what they follow from."""
    return {"protocol": vars(protocol), "seed": settings.seed, **more}
