"""SharpBalance's closed forms against exact arithmetic and simulation, where the paper's figures do not look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import sharpbalance as sb
from .panels import BLUE, GREEN, GREY, ORANGE, VERMILLION, Panel, line, picture
from .quadratic import Array, ascent, summit
from .result import Result, Settings
from .simulation import Draws, Protocol, draw
from .wishart import Phi, Wishart, contraction


@dataclass(frozen=True)
class Sizes:
    """Of `wishart-moments`: a step of SAM near its edge of stability, and the dimensions to look at."""

    eta: float = 0.005
    rho: float = 0.4
    ratio: int = 20  # rows to a column, as in 3000 x 150
    columns: tuple[int, ...] = (20, 40, 80, 150, 320, 640)
    power: int = 20  # i of phi(i, j): 2k with k = 10


def wishart_moments(settings: Settings) -> Result:
    """How far phi in the limit, and with its next term, is from that of matrices of a size; what float64 does to it."""
    s = settings.of(Sizes(), columns=(20, 40, 80))
    rows = []
    for done, d in enumerate(s.columns):
        phi = Phi(Wishart(s.ratio * d, d), s.eta, s.rho)
        row: dict[str, Any] = {"columns": d}
        for j in (0, 2):
            row |= {f"{n}_{j}": getattr(phi, n)(s.power, j) for n in ("limit", "first_order", "exact")}
        rows.append(row)
        settings.tick(done + 1, len(s.columns))
    phi = Phi(Wishart(s.ratio * 150, 150), s.eta, s.rho)
    sums = []
    for i in range(2, 2 * s.power + 1, 2):
        rational = float(phi.printed_sum(i, 4))
        errors = {
            n: abs(x / rational - 1) for n, x in (("quadrature", phi.limit(i, 4)), ("float", phi.float_sum(i, 4)))
        }
        sums.append({"i": i, "rational": rational, "float_sum": phi.float_sum(i, 4), **errors})
    far = {n: [abs(r[f"{n}_0"] / r["exact_0"] - 1) for r in rows] for n in ("limit", "first_order")}
    at, last = min(rows, key=lambda r: abs(r["columns"] - 150)), sums[-1]
    words = [
        f"At d = {at['columns']}, phi({s.power}, 0) is {at['exact_0']:.6g} exactly, {at['limit_0']:.6g} in the limit "
        f"(printed), and {at['first_order_0']:.6g} with the next term; phi({s.power}, 2) is {at['exact_2']:.5g}, "
        f"{at['limit_2']:.5g} and {at['first_order_2']:.5g}.",
        f"The printed sum for phi({last['i']}, 4) is {last['rational']:.6g} in rationals, {last['float_sum']:.6g} term "
        f"by term in float64; quadrature differs from rationals by {max(r['quadrature'] for r in sums):.1e} at most.",
    ]
    sizes = [r["columns"] for r in rows]
    panels = [
        Panel(f"phi({s.power}, 0): off the exact value by", "columns d", "share of it", [
            line("limit (printed)", sizes, far["limit"], VERMILLION, mode="lines+markers"),
            line("with the next term in 1/d", sizes, far["first_order"], GREEN, mode="lines+markers"),
        ], log="xy"),
        Panel("phi(i, 4) at d = 150: off the rational sum by", "i", "share of it", [
            line("term by term in float64", [r["i"] for r in sums], [max(r["float"], 1e-17) for r in sums], VERMILLION),
            line("quadrature", [r["i"] for r in sums], [max(r["quadrature"], 1e-17) for r in sums], BLUE),
        ], log="y"),
    ]  # fmt: skip
    title = f"Wishart moments, eta = {s.eta}, rho = {s.rho}, n / d = {s.ratio}"
    drawn = _sparse(picture(title, " ".join(words), *panels), "yaxis2")
    return Result({"sizes": vars(s), "by_columns": rows, "by_power": sums}, drawn, words)


@dataclass(frozen=True)
class JensenSizes:
    """Of `sharpbalance-jensen-gap`: few dimensions, where gradients vary most in length, and teachers of many sizes."""

    eta: float = 0.0025
    rho: float = 0.5
    steps: int = 5
    radius: float = 0.1
    matrices: int = 1000
    directions: int = 30  # of the teacher, a matrix
    rows: int = 600
    columns: int = 30
    norms: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def jensen_gap(settings: Settings) -> Result:
    """Theorem 1's lower bounds against the simulated sharpness, over the length of the teacher."""
    s = settings.of(JensenSizes(), matrices=100)
    drawn = Protocol(s.matrices, s.directions, s.rows, s.columns, test_rows=1, parts=1, radius=s.radius)
    draws = draw(drawn, settings.seed, tick=settings.tick)
    unit = draws.starts / np.linalg.norm(draws.starts, axis=-1, keepdims=True)  # uniform directions
    slope = -draws.curvature[:, None] * contraction(draws.curvature, s.eta, s.rho)[:, None] ** s.steps * unit
    rows = []
    for norm in s.norms:
        t = replace(drawn.training(s.eta, s.rho, s.steps), teacher=norm)
        leading, exact = t.phi.limit, t.phi.exact
        found = summit(draws.curvature[:, None], norm * slope, s.radius).height.mean(1)
        bounds = {
            "printed": sb.lower(t, leading, sb.gap_printed(t, leading)),
            "printed_exact_phi": sb.lower(t, exact, sb.gap_printed(t, exact)),
            "corrected": sb.lower(t, exact, sb.gap_corrected(t, exact)),
            "own_variance": sb.lower(t, exact, sb.gap_tight(t, exact)),
        }
        error = float(found.std(ddof=1) / len(found) ** 0.5)
        rows.append({"teacher": norm, "sharpness": float(found.mean()), "error": error, **bounds})
    kinds = {
        "printed": ("printed", VERMILLION), "printed_exact_phi": ("printed, exact phi", ORANGE),
        "corrected": ("G corrected", GREY), "own_variance": ("with the variance itself", GREEN),
    }  # fmt: skip
    words = [_violations(rows, key, name) for key, (name, _) in kinds.items()]
    traces = [
        line(name, s.norms, [r[key] / r["sharpness"] for r in rows], colour, mode="lines+markers")
        for key, (name, colour) in kinds.items()
    ]
    bars = {"type": "data", "array": [r["error"] / r["sharpness"] for r in rows]}
    traces.append(line("simulated", s.norms, [1.0] * len(rows), BLUE, error_y=bars))
    panels = [
        Panel(heading, "||w*||", "share of it", traces, log="x", range_y=shown)
        for heading, shown in (("lower bounds over the simulated sharpness", (-1.0, 1.5)), ("closer", (0.85, 1.05)))
    ]
    title = f"Theorem 1's lower bound: k = {s.steps}, eta = {s.eta}, rho = {s.rho}, rho_0 = {s.radius}"
    return Result({"sizes": vars(s), "rows": rows}, picture(title, " ".join(words), *panels), words)


def _violations(rows: list[dict[str, Any]], key: str, name: str) -> str:
    worst = max(rows, key=lambda r: (r[key] - r["sharpness"]) / r["sharpness"])
    share, errors = worst[key] / worst["sharpness"] - 1, (worst[key] - worst["sharpness"]) / worst["error"]
    fails = [r["teacher"] for r in rows if r[key] > r["sharpness"] + 3 * r["error"]]
    where = f"fails for ||w*|| = {', '.join(f'{x:g}' for x in fails)}" if fails else "holds throughout"
    empty = sum(r[key] < 0 for r in rows)
    most = f"at most {share:+.1%} off the sharpness ({errors:+.1f} standard errors)"
    return f"Lower bound, {name}: {where}; {most}; below 0 for {empty} of {len(rows)}."


@dataclass(frozen=True)
class AscentSizes:
    """Of `sharpness-by-ascent`: how long to climb, with the paper's step, in balls of these radii."""

    radii: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    steps: int = 2000
    matrices: int = 20
    step: float = 0.01  # appendix C.3


def by_ascent(settings: Settings) -> Result:
    """How far projected ascent is below the trust-region maximum, step by step."""
    s = settings.of(AscentSizes(), matrices=4, steps=500)
    draws = draw(Protocol(s.matrices, 2, test_rows=1), settings.seed, tick=settings.tick)
    cases = {
        "early: k = 5, eta = 0.001, rho = 0.5": (0.001, 0.5, 5),
        "late: k = 10, eta = 0.003, rho = 0.5": (0.003, 0.5, 10),
    }
    rows: list[dict[str, Any]] = []
    panels = []
    colours = [BLUE, ORANGE, GREEN, VERMILLION, GREY]
    for name, (eta, rho, k) in cases.items():
        traces = []
        for n, radius in enumerate(s.radii):
            power = contraction(draws.curvature, eta, rho) ** k
            short = _shortfall(draws, -draws.curvature * power * draws.teacher, radius, s)
            at_50 = float(short[min(49, s.steps - 1)])
            rows.append({"case": name, "radius": radius, "after_50": at_50, "at_end": float(short[-1])})
            y = np.maximum(short, 1e-17)
            traces.append(line(f"radius {radius:g}", np.arange(1, s.steps + 1), y, colours[n % len(colours)]))
        panels.append(Panel(name, "steps of ascent", "share of the maximum that is missing", traces, log="xy"))
    early, late = (max(float(r[key]) for r in rows) for key in ("after_50", "at_end"))
    words = [
        f"After the paper's 50 steps of {s.step:g} the ascent misses at most {early:.1e} of the maximum, which "
        f"is late in training, where the gradient is small; after {s.steps} steps, {late:.1e}."
    ]
    title = "Sharpness by projected ascent, below its closed form"
    drawn = _sparse(picture(title, " ".join(words), *panels), "yaxis", "yaxis2")
    return Result({"sizes": vars(s), "rows": rows}, drawn, words)


def _sparse(drawn: dict[str, Any], *axes: str) -> dict[str, Any]:
    """Labels at every fourth power of ten, for axes over many."""
    for axis in axes:
        drawn["layout"][axis]["dtick"] = 4
    return drawn


def _shortfall(draws: Draws, gradient: Array, radius: float, s: AscentSizes) -> Array:
    best = summit(draws.curvature, gradient, radius).height
    short: Array = (1 - ascent(draws.curvature, gradient, radius, s.step, s.steps) / best).max(1)
    return short
