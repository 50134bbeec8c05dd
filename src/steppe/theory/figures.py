"""Figures 1b, 2, 8, 9 and 10 of SharpBalance (Lu et al. 2024) reproduced: theorems beside simulations.

The paper's text gives the sizes, the ranges of rho and of k, and the step of the ascent. Step sizes, the radius of
sharpness and the scales of weights are only in its pictures, so the values here are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import sharpbalance as sb
from .panels import BLUE, GREEN, GREY, ORANGE, VERMILLION, Panel, dots, line, picture
from .result import Result, Settings
from .simulation import Measured, Protocol, draw

Row = dict[str, Any]
Case = tuple[float, float, int]  # eta, rho, k

QUICK: dict[str, Any] = {"matrices": 8, "starts": 10, "rows": 600, "columns": 30, "test_rows": 200}
POINTS = 9  # along a curve

SAM_PANELS = ((0.001, 5), (0.003, 5), (0.002, 10))  # eta and k: eta < 2 / (b + rho b^2) = .0042 at rho = .5 is stable
PART_PANELS = ((0.005, 5), (0.02, 5), (0.01, 10))  # a part has a tenth of the curvature
LARGE, SMALL = (0.5, 0.3), (1.0, 0.4)  # ranges of rho: appendix C.3, and Figure 8a
ITERATIONS = range(1, 16)  # Figure 8b


def figure_2(settings: Settings) -> Result:
    """One curve over rho, with the upper bound to its right and the lower bounds to its left."""
    cases = [("k = 5, eta = 0.002", [(0.002, float(rho), 5) for rho in np.linspace(*LARGE, POINTS)])]
    return _sam(settings, "Theorem 1 and simulation, rho from 0.5 to 0.3 (Figure 2)", cases)


def figure_9(settings: Settings) -> Result:
    """As Figure 2, for several step sizes and numbers of steps."""
    cases = [
        (f"k = {k}, eta = {eta}", [(eta, float(rho), k) for rho in np.linspace(*LARGE, POINTS)])
        for eta, k in SAM_PANELS
    ]
    return _sam(settings, "Theorem 1 and simulation, rho from 0.5 to 0.3 (Figure 9)", cases)


def figure_8(settings: Settings) -> Result:
    """Members trained on parts: a curve over rho and one over the number of steps."""
    cases = [
        ("(a) rho from 1 to 0.4: k = 5, eta = 0.01", [(0.01, float(r), 5) for r in np.linspace(*SMALL, POINTS)]),
        ("(b) k from 1 to 15: rho = 0.5, eta = 0.01", [(0.01, 0.5, k) for k in ITERATIONS]),
    ]
    return _parts(settings, "Theorem 2 and simulation (Figure 8)", cases)


def figure_10(settings: Settings) -> Result:
    """As Figure 8a, for several step sizes and numbers of steps."""
    cases = [
        (f"k = {k}, eta = {eta}", [(eta, float(rho), k) for rho in np.linspace(*LARGE, POINTS)])
        for eta, k in PART_PANELS
    ]
    return _parts(settings, "Theorem 2 and simulation, rho from 0.5 to 0.3 (Figure 10)", cases)


def figure_1b(settings: Settings) -> Result:
    """Diversity against sharpness of both, in closed form and simulated: at equal sharpness, who is more diverse?"""
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, parts=True, tick=settings.tick)
    reach = [float(r) for r in np.linspace(0, 1, 11)]
    rows = [row(draws.sam(0.0005, rho, 5), rho=rho, **sam_bounds(protocol, (0.0005, rho, 5))) for rho in reach]
    part_rows = [
        row(draws.sharpbalance(0.01, rho, 10), rho=rho, **part_bounds(protocol, (0.01, rho, 10))) for rho in reach
    ]
    at, shown = np.array([r["sharpness"] for r in rows]), np.array([r["diversity"] for r in rows])
    for r in part_rows:
        for key in ("sharpness", "alone"):
            r[f"sam_at_same_{key}"] = float(np.interp(r[key], at[::-1], shown[::-1], left=np.nan, right=np.nan))
    words = [_advantage(part_rows, "sharpness", "their mean over parts, as in Theorem 2,")]
    words.append(_advantage(part_rows, "alone", "the expected members of the parts"))
    traces = [
        *_two("SAM", rows, "upper", "sharpness", BLUE),
        *_two("parts: sharpness of their mean", part_rows, "upper", "sharpness", ORANGE),
        *_two("parts: sharpness of the members", part_rows, "upper_alone", "alone", GREEN),
    ]
    panel = Panel(
        "SAM: k = 5, eta = 0.0005; parts: k = 10, eta = 0.01; rho from 0 to 1", "sharpness", "diversity", traces
    )
    words.append("Lines are the upper bounds with exact moments, points are simulated.")
    title = "Sharpness and diversity, trained on all rows and on parts (Figure 1b)"
    return Result(
        data(protocol, settings, sam=rows, sharpbalance=part_rows), picture(title, " ".join(words), panel), words
    )


def _sam(settings: Settings, title: str, cases: Sequence[tuple[str, Sequence[Case]]]) -> Result:
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, tick=settings.tick)
    found = {name: [point(draws.sam, c, sam_bounds(protocol, c)) for c in some] for name, some in cases}
    rows = [r for some in found.values() for r in some]
    words = [
        gap("diversity", rows, "diversity_printed", "diversity_exact"),
        gap("sharpness", rows, "upper_printed", "upper"),
        gap("sharpness", rows, "lower_printed", "lower_corrected", "lower", "limit"),
        climb(rows),
    ]
    panels = [
        Panel(name, "sharpness", "diversity", [
            _curve("upper, printed", some, "upper_printed", VERMILLION),
            _curve("lower, printed", some, "lower_printed", VERMILLION, dash="dot"),
            _curve("lower, G corrected", some, "lower_corrected", GREY, dash="dot"),
            _curve("lower, own variance", some, "lower", GREEN, dash="dash"),
            _curve("limit", some, "limit", ORANGE),
            _simulated(some),
        ], range_y=(0, 1.08 * max(r["diversity"] for r in some)))
        for name, some in found.items()
    ]  # fmt: skip
    panels += [_shares(rows)] if len(found) == 1 else []
    return Result(data(protocol, settings, panels=found), picture(title, " ".join(words), *panels), words)


def _shares(rows: Sequence[Row]) -> Panel:
    """How far each bound lies from the simulated sharpness, as a share of it, over rho."""
    kinds = (
        ("upper, printed", "upper_printed", VERMILLION, "solid"),
        ("lower, printed", "lower_printed", VERMILLION, "dot"),
        ("lower, own variance", "lower", GREEN, "dash"),
        ("limit", "limit", ORANGE, "solid"),
    )
    rho, seen = [r["rho"] for r in rows], [r["sharpness"] for r in rows]
    traces = [
        line(name, rho, [r[key] / at - 1 for r, at in zip(rows, seen, strict=True)], colour, line={"dash": dash})
        for name, key, colour, dash in kinds
    ]
    error = {"type": "data", "array": [r["sharpness_error"] / r["sharpness"] for r in rows], "thickness": 1, "width": 2}
    traces.append(dots("simulated", rho, [0.0] * len(rho), BLUE, error_y=error))
    return Panel("bounds less simulation, over simulation", "rho", "share", traces)


def _parts(settings: Settings, title: str, cases: Sequence[tuple[str, Sequence[Case]]]) -> Result:
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, parts=True, tick=settings.tick)
    found = {name: [point(draws.sharpbalance, c, part_bounds(protocol, c)) for c in some] for name, some in cases}
    rows = [r for some in found.values() for r in some]
    words = [
        gap("diversity", rows, "diversity_printed", "diversity_exact"),
        gap("sharpness", rows, "upper_printed", "upper"),
        climb(rows),
    ]
    panels = [
        Panel(name, "sharpness", "diversity", [
            _curve("upper, C printed", some, "upper_printed", VERMILLION),
            _curve("upper, C corrected", some, "upper", GREEN, dash="dash"),
            _simulated(some),
        ])
        for name, some in found.items()
    ]  # fmt: skip
    return Result(data(protocol, settings, panels=found), picture(title, " ".join(words), *panels), words)


def _advantage(rows: Sequence[Row], key: str, what: str) -> str:
    ratios = [r["diversity"] / r[f"sam_at_same_{key}"] for r in rows if np.isfinite(r[f"sam_at_same_{key}"])]
    if not ratios:
        return f"With the sharpness of {what} the curves share no sharpness."
    return (
        f"With the sharpness of {what} members trained on parts have {min(ratios):.2f} to {max(ratios):.2f} times the "
        f"diversity of SAM's at equal sharpness ({len(ratios)} points)."
    )


def _two(name: str, rows: Sequence[Row], bound: str, measured: str, colour: str) -> list[dict[str, Any]]:
    exact, seen = [r["diversity_exact"] for r in rows], [r["diversity"] for r in rows]
    return [line(name, [r[bound] for r in rows], exact, colour), dots(name, [r[measured] for r in rows], seen, colour)]


def _curve(name: str, rows: Sequence[Row], bound: str, colour: str, dash: str = "solid") -> dict[str, Any]:
    """A bound with the diversity that goes with it, printed with printed and exact with exact."""
    kind = "diversity_printed" if bound.endswith(("printed", "corrected", "limit")) else "diversity_exact"
    return line(name, [r[bound] for r in rows], [r[kind] for r in rows], colour, line={"dash": dash})


def _simulated(rows: Sequence[Row]) -> dict[str, Any]:
    errors = {
        f"error_{axis}": {"type": "data", "array": [r[f"{name}_error"] for r in rows], "thickness": 1, "width": 2}
        for axis, name in (("x", "sharpness"), ("y", "diversity"))
    }
    return dots("simulated", [r["sharpness"] for r in rows], [r["diversity"] for r in rows], BLUE, **errors)


def sam_bounds(protocol: Protocol, case: Case) -> Row:
    """Bounds of Theorem 1, as printed with leading moments and corrected with exact ones, and the limit itself."""
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
    """Bounds of Theorem 2, as printed and corrected, and the bound for single members."""
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
    """Measured values at one step size, radius and number of steps, beside the predicted ones."""
    return row(measure(*case), eta=case[0], rho=case[1], k=case[2], **bounds)


def row(m: Measured, **more: Any) -> Row:
    """The means over matrices, with the standard errors of the first two."""
    values: Row = {name: float(np.mean(getattr(m, name))) for name in vars(m)}
    for name in ("diversity", "sharpness"):
        x = getattr(m, name)
        values[f"{name}_error"] = float(np.std(x, ddof=1) / len(x) ** 0.5)
    return {**more, **values}


def gap(measured: str, rows: Sequence[Row], *bounds: str) -> str:
    """Relative distance of predictions from the simulation, and the largest distance in standard errors."""
    texts = []
    for bound in bounds:
        share = [(r[bound] - r[measured]) / r[measured] for r in rows]
        errors = max(((r[bound] - r[measured]) / r[f"{measured}_error"] for r in rows), key=abs)
        texts.append(
            f"{bound.replace('_', ' ')} {min(share):+.2%} to {max(share):+.2%} ({errors:+.1f} standard errors)"
        )
    return f"From the simulated {measured}: {', '.join(texts)}."


def climb(rows: Sequence[Row]) -> str:
    """Relative distance of projected ascent below the closed form."""
    worst = max(1 - r["climbed"] / r["sharpness"] for r in rows)
    return f"Projected ascent ends at most {worst:.1e} of the sharpness below the summit."


def data(protocol: Protocol, settings: Settings, **more: Any) -> dict[str, Any]:
    """Rows with the protocol and the seed."""
    return {"protocol": vars(protocol), "seed": settings.seed, **more}
