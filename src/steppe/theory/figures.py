"""Figures 1b, 2, 8, 9 and 10 of SharpBalance (Lu et al. 2024) reproduced: theorems beside simulations.

The paper's text gives the sizes, the ranges of rho and of k, and the step size of the ascent. It does not give the
training step sizes, the radius of sharpness and the scales of the weights, so these values are steppe's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._util.pages import BLUE, GREEN, GREY, ORANGE, VERMILLION
from . import sharpbalance as sb
from .panels import Panel, dots, line, picture
from .result import Result, Settings
from .simulation import Measured, Protocol, draw

Row = dict[str, Any]
Case = tuple[float, float, int]  # eta, rho, k
Cases = Mapping[str, Sequence[Case]]  # the points of a curve, by the title of its panel

QUICK: dict[str, Any] = {"matrices": 8, "starts": 10, "rows": 600, "columns": 30, "test_rows": 200}
POINTS = 9  # per curve

SAM_PANELS = (
    (0.001, 5),
    (0.003, 5),
    (0.002, 10),
)  # eta and k; stable for eta < 2 / (b + rho b^2) = 0.0042 at rho = 0.5
PART_PANELS = ((0.005, 5), (0.02, 5), (0.01, 10))  # a part has a tenth of the curvature
LARGE, SMALL = (0.5, 0.3), (1.0, 0.4)  # ranges of rho: appendix C.3, and Figure 8a
ITERATIONS = range(1, 16)  # Figure 8b


def figure_2(settings: Settings) -> Result:
    """One curve over rho, with the upper bound to its right and the lower bounds to its left."""
    return _sam(settings, "Theorem 1 and simulation, rho from 0.5 to 0.3 (Figure 2)", _over_rho((0.002, 5)))


def figure_9(settings: Settings) -> Result:
    """As Figure 2, for several step sizes and numbers of steps."""
    return _sam(settings, "Theorem 1 and simulation, rho from 0.5 to 0.3 (Figure 9)", _over_rho(*SAM_PANELS))


def figure_8(settings: Settings) -> Result:
    """Members trained on parts: a curve over rho and one over the number of steps."""
    cases = {
        "(a) rho from 1 to 0.4: k = 5, eta = 0.01": [(0.01, float(r), 5) for r in np.linspace(*SMALL, POINTS)],
        "(b) k from 1 to 15: rho = 0.5, eta = 0.01": [(0.01, 0.5, k) for k in ITERATIONS],
    }
    return _parts(settings, "Theorem 2 and simulation (Figure 8)", cases)


def figure_10(settings: Settings) -> Result:
    """As Figure 8a, for several step sizes and numbers of steps."""
    return _parts(settings, "Theorem 2 and simulation, rho from 0.5 to 0.3 (Figure 10)", _over_rho(*PART_PANELS))


def _over_rho(*panels: tuple[float, int]) -> Cases:
    """A curve over the large radii for each step size and number of steps."""
    return {f"k = {k}, eta = {eta}": [(eta, float(rho), k) for rho in np.linspace(*LARGE, POINTS)] for eta, k in panels}


def figure_1b(settings: Settings) -> Result:
    """Diversity against sharpness, trained on all rows and on parts, in closed form and simulated."""
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, parts=True, tick=settings.tick)
    radii = [float(r) for r in np.linspace(0, 1, 11)]
    rows = [_row(draws.sam(0.0005, rho, 5), rho=rho, **sam_bounds(protocol, (0.0005, rho, 5))) for rho in radii]
    part_rows = [
        _row(draws.sharpbalance(0.01, rho, 10), rho=rho, **part_bounds(protocol, (0.01, rho, 10))) for rho in radii
    ]
    sharpness, diversity = np.array([r["sharpness"] for r in rows]), np.array([r["diversity"] for r in rows])
    for r in part_rows:
        for key in ("sharpness", "alone"):
            at_same = np.interp(r[key], sharpness[::-1], diversity[::-1], left=np.nan, right=np.nan)
            r[f"sam_at_same_{key}"] = float(at_same)
    words = [
        _advantage(part_rows, "sharpness", "the mean over parts, as in Theorem 2"),
        _advantage(part_rows, "alone", "the expected members of the parts"),
        "Lines are the upper bounds with exact moments, points are simulated.",
    ]
    traces = [
        *_bound_and_simulation("SAM", rows, "upper", "sharpness", BLUE),
        *_bound_and_simulation("parts: sharpness of their mean", part_rows, "upper", "sharpness", ORANGE),
        *_bound_and_simulation("parts: sharpness of the members", part_rows, "upper_alone", "alone", GREEN),
    ]
    panel = Panel(
        "SAM: k = 5, eta = 0.0005; parts: k = 10, eta = 0.01; rho from 0 to 1", "sharpness", "diversity", traces
    )
    title = "Sharpness and diversity, trained on all rows and on parts (Figure 1b)"
    return Result(
        _data(protocol, settings, sam=rows, sharpbalance=part_rows), picture(title, " ".join(words), panel), words
    )


def _sam(settings: Settings, title: str, cases: Cases) -> Result:
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, tick=settings.tick)
    curves = {name: [_point(draws.sam, c, sam_bounds(protocol, c)) for c in points] for name, points in cases.items()}
    rows = [r for curve in curves.values() for r in curve]
    words = [
        _gaps("diversity", rows, "diversity_printed", "diversity_exact"),
        _gaps("sharpness", rows, "upper_printed", "upper"),
        _gaps("sharpness", rows, "lower_printed", "lower_corrected", "lower", "limit"),
        _ascent_gap(rows),
    ]
    panels = [
        Panel(name, "sharpness", "diversity", [
            _curve("upper, printed", curve, "upper_printed", VERMILLION),
            _curve("lower, printed", curve, "lower_printed", VERMILLION, dash="dot"),
            _curve("lower, G corrected", curve, "lower_corrected", GREY, dash="dot"),
            _curve("lower, with the variance itself", curve, "lower", GREEN, dash="dash"),
            _curve("limit", curve, "limit", ORANGE),
            _simulated(curve),
        ], range_y=(0, 1.08 * max(r["diversity"] for r in curve)))
        for name, curve in curves.items()
    ]  # fmt: skip
    panels += [_relative_bounds(rows)] if len(curves) == 1 else []
    return Result(_data(protocol, settings, panels=curves), picture(title, " ".join(words), *panels), words)


def _relative_bounds(rows: Sequence[Row]) -> Panel:
    """The relative distance of each bound from the simulated sharpness, over rho."""
    kinds = (
        ("upper, printed", "upper_printed", VERMILLION, "solid"),
        ("lower, printed", "lower_printed", VERMILLION, "dot"),
        ("lower, with the variance itself", "lower", GREEN, "dash"),
        ("limit", "limit", ORANGE, "solid"),
    )
    rho = [r["rho"] for r in rows]
    traces = [
        line(name, rho, [r[key] / r["sharpness"] - 1 for r in rows], colour, line={"dash": dash})
        for name, key, colour, dash in kinds
    ]
    error = {"type": "data", "array": [r["sharpness_error"] / r["sharpness"] for r in rows], "thickness": 1, "width": 2}
    traces.append(dots("simulated", rho, [0.0] * len(rho), BLUE, error_y=error))
    return Panel("bound / simulation - 1", "rho", "relative distance", traces)


def _parts(settings: Settings, title: str, cases: Cases) -> Result:
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, parts=True, tick=settings.tick)
    curves = {
        name: [_point(draws.sharpbalance, c, part_bounds(protocol, c)) for c in points]
        for name, points in cases.items()
    }
    rows = [r for curve in curves.values() for r in curve]
    words = [
        _gaps("diversity", rows, "diversity_printed", "diversity_exact"),
        _gaps("sharpness", rows, "upper_printed", "upper"),
        _ascent_gap(rows),
    ]
    panels = [
        Panel(name, "sharpness", "diversity", [
            _curve("upper, C printed", curve, "upper_printed", VERMILLION),
            _curve("upper, C corrected", curve, "upper", GREEN, dash="dash"),
            _simulated(curve),
        ])
        for name, curve in curves.items()
    ]  # fmt: skip
    return Result(_data(protocol, settings, panels=curves), picture(title, " ".join(words), *panels), words)


def _advantage(rows: Sequence[Row], key: str, whose: str) -> str:
    ratios = [r["diversity"] / r[f"sam_at_same_{key}"] for r in rows if np.isfinite(r[f"sam_at_same_{key}"])]
    if not ratios:
        return f"With the sharpness of {whose}, the two curves have no sharpness in common."
    return (
        f"At equal sharpness, measured on {whose}, members trained on parts have {min(ratios):.2f} to "
        f"{max(ratios):.2f} times the diversity of SAM's ({len(ratios)} points)."
    )


def _bound_and_simulation(
    name: str, rows: Sequence[Row], bound: str, measured: str, colour: str
) -> list[dict[str, Any]]:
    exact, simulated = [r["diversity_exact"] for r in rows], [r["diversity"] for r in rows]
    return [
        line(name, [r[bound] for r in rows], exact, colour),
        dots(name, [r[measured] for r in rows], simulated, colour),
    ]


def _curve(name: str, rows: Sequence[Row], bound: str, colour: str, dash: str = "solid") -> dict[str, Any]:
    """A bound against its diversity: printed bounds with the printed diversity, exact ones with the exact diversity."""
    kind = "diversity_printed" if bound.endswith(("printed", "corrected", "limit")) else "diversity_exact"
    return line(name, [r[bound] for r in rows], [r[kind] for r in rows], colour, line={"dash": dash})


def _simulated(rows: Sequence[Row]) -> dict[str, Any]:
    errors = {
        f"error_{axis}": {"type": "data", "array": [r[f"{name}_error"] for r in rows], "thickness": 1, "width": 2}
        for axis, name in (("x", "sharpness"), ("y", "diversity"))
    }
    return dots("simulated", [r["sharpness"] for r in rows], [r["diversity"] for r in rows], BLUE, **errors)


def sam_bounds(protocol: Protocol, case: Case) -> Row:
    """Bounds of Theorem 1, as printed with moments of leading order and corrected with exact ones, and the limit."""
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
    """Bounds of Theorem 2, as printed and corrected, and the bound for the members of single parts."""
    t, parts = protocol.training(*case), protocol.parts
    leading, exact = t.part(parts).phi.limit, t.part(parts).phi.exact
    return {
        "diversity_printed": sb.diversity_in_parts(t, parts, leading),
        "diversity_exact": sb.diversity_in_parts(t, parts, exact),
        "upper_printed": sb.upper_in_parts(t, parts, leading, printed=True),
        "upper": sb.upper_in_parts(t, parts, exact),
        "upper_alone": sb.upper_alone(t, parts, exact),
    }


def _point(measure: Callable[[float, float, int], Measured], case: Case, bounds: Row) -> Row:
    """Measured and predicted values at one step size, radius and number of steps."""
    return _row(measure(*case), eta=case[0], rho=case[1], k=case[2], **bounds)


def _row(m: Measured, **more: Any) -> Row:
    """The means over matrices, with the standard errors of the first two."""
    values: Row = {name: float(np.mean(getattr(m, name))) for name in vars(m)}
    for name in ("diversity", "sharpness"):
        x = getattr(m, name)
        values[f"{name}_error"] = float(np.std(x, ddof=1) / len(x) ** 0.5)
    return {**more, **values}


def _gaps(measured: str, rows: Sequence[Row], *bounds: str) -> str:
    """Relative distances of predictions from the simulation, and the largest distance in standard errors."""
    texts = []
    for bound in bounds:
        relative = [(r[bound] - r[measured]) / r[measured] for r in rows]
        errors = max(((r[bound] - r[measured]) / r[f"{measured}_error"] for r in rows), key=abs)
        texts.append(
            f"{bound.replace('_', ' ')} {min(relative):+.2%} to {max(relative):+.2%} ({errors:+.1f} standard errors)"
        )
    return f"Relative to the simulated {measured}: {', '.join(texts)}."


def _ascent_gap(rows: Sequence[Row]) -> str:
    worst = max(1 - r["climbed"] / r["sharpness"] for r in rows)
    return f"Projected ascent misses at most {worst:.1e} of the sharpness."


def _data(protocol: Protocol, settings: Settings, **more: Any) -> dict[str, Any]:
    return {"protocol": vars(protocol), "seed": settings.seed, **more}
