"""Checks of SharpBalance's closed forms against exact arithmetic and simulation, outside the range of its figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._util.pages import BLUE, GREEN, GREY, ORANGE, VERMILLION
from . import sharpbalance as sb
from .panels import Panel, line, picture
from .quadratic import Array, ascent, ball_maximum
from .result import Result, Settings
from .simulation import Draws, Protocol, draw
from .wishart import Phi, Wishart, contraction


@dataclass(frozen=True)
class Sizes:
    """Sizes of `wishart-moments`: a SAM step near the edge of stability, and the dimensions."""

    eta: float = 0.005
    rho: float = 0.4
    ratio: int = 20  # rows per column, as in 3000 x 150
    columns: tuple[int, ...] = (20, 40, 80, 150, 320, 640)
    power: int = 20  # i of phi(i, j): 2k with k = 10


def wishart_moments(settings: Settings) -> Result:
    """Errors of the limit of phi, with and without its next term, for matrices of finite size, and of float64."""
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
    errors_0 = {n: [abs(r[f"{n}_0"] / r["exact_0"] - 1) for r in rows] for n in ("limit", "first_order")}
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
        Panel(f"phi({s.power}, 0) against its exact value", "columns d", "relative error", [
            line("limit (printed)", sizes, errors_0["limit"], VERMILLION, mode="lines+markers"),
            line("with the next term in 1/d", sizes, errors_0["first_order"], GREEN, mode="lines+markers"),
        ], log="xy"),
        Panel("phi(i, 4) at d = 150 against the rational sum", "i", "relative error", [
            line("term by term in float64", [r["i"] for r in sums], [max(r["float"], 1e-17) for r in sums], VERMILLION),
            line("quadrature", [r["i"] for r in sums], [max(r["quadrature"], 1e-17) for r in sums], BLUE),
        ], log="y"),
    ]  # fmt: skip
    title = f"Wishart moments, eta = {s.eta}, rho = {s.rho}, n / d = {s.ratio}"
    figure = _sparse_ticks(picture(title, " ".join(words), *panels), "yaxis2")
    return Result({"sizes": vars(s), "by_columns": rows, "by_power": sums}, figure, words)


@dataclass(frozen=True)
class JensenSizes:
    """Sizes of `sharpbalance-jensen-gap`: few dimensions, where gradient norms vary most, and many teachers."""

    eta: float = 0.0025
    rho: float = 0.5
    steps: int = 5
    radius: float = 0.1
    matrices: int = 1000
    directions: int = 30  # of the teacher, per matrix
    rows: int = 600
    columns: int = 30
    norms: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def jensen_gap(settings: Settings) -> Result:
    """Theorem 1's lower bounds against the simulated sharpness, over the norm of the teacher."""
    s = settings.of(JensenSizes(), matrices=100)
    protocol = Protocol(s.matrices, s.directions, s.rows, s.columns, test_rows=1, parts=1, radius=s.radius)
    draws = draw(protocol, settings.seed, tick=settings.tick)
    unit = draws.starts / np.linalg.norm(draws.starts, axis=-1, keepdims=True)  # uniform directions
    gradient = -draws.curvature[:, None] * contraction(draws.curvature, s.eta, s.rho)[:, None] ** s.steps * unit
    rows = []
    for norm in s.norms:
        t = replace(protocol.training(s.eta, s.rho, s.steps), teacher=norm)
        leading, exact = t.phi.limit, t.phi.exact
        sharpness = ball_maximum(draws.curvature[:, None], norm * gradient, s.radius).value.mean(1)
        bounds = {
            "printed": sb.lower(t, leading, sb.gap_printed(t, leading)),
            "printed_exact_phi": sb.lower(t, exact, sb.gap_printed(t, exact)),
            "corrected": sb.lower(t, exact, sb.gap_corrected(t, exact)),
            "own_variance": sb.lower(t, exact, sb.gap_tight(t, exact)),
        }
        error = float(sharpness.std(ddof=1) / len(sharpness) ** 0.5)
        rows.append({"teacher": norm, "sharpness": float(sharpness.mean()), "error": error, **bounds})
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
        Panel(heading, "||w*||", "ratio", traces, log="x", range_y=limits)
        for heading, limits in (("lower bounds over the simulated sharpness", (-1.0, 1.5)), ("detail", (0.85, 1.05)))
    ]
    title = f"Theorem 1's lower bound: k = {s.steps}, eta = {s.eta}, rho = {s.rho}, rho_0 = {s.radius}"
    return Result({"sizes": vars(s), "rows": rows}, picture(title, " ".join(words), *panels), words)


def _violations(rows: list[dict[str, Any]], key: str, name: str) -> str:
    worst = max(rows, key=lambda r: (r[key] - r["sharpness"]) / r["sharpness"])
    relative, errors = worst[key] / worst["sharpness"] - 1, (worst[key] - worst["sharpness"]) / worst["error"]
    fails = [r["teacher"] for r in rows if r[key] > r["sharpness"] + 3 * r["error"]]
    where = f"fails for ||w*|| = {', '.join(f'{x:g}' for x in fails)}" if fails else "holds throughout"
    negative = sum(r[key] < 0 for r in rows)
    most = f"at most {relative:+.1%} from the sharpness ({errors:+.1f} standard errors)"
    return f"Lower bound, {name}: {where}; {most}; negative for {negative} of {len(rows)} teachers."


@dataclass(frozen=True)
class AscentSizes:
    """Sizes of `sharpness-by-ascent`."""

    radii: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    steps: int = 2000
    matrices: int = 20
    step: float = 0.01  # appendix C.3


def by_ascent(settings: Settings) -> Result:
    """The gap between projected ascent and the trust-region maximum, step by step."""
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
            gap = _relative_gap(draws, -draws.curvature * power * draws.teacher, radius, s)
            at_50 = float(gap[min(49, s.steps - 1)])
            rows.append({"case": name, "radius": radius, "after_50": at_50, "at_end": float(gap[-1])})
            y = np.maximum(gap, 1e-17)
            traces.append(line(f"radius {radius:g}", np.arange(1, s.steps + 1), y, colours[n % len(colours)]))
        panels.append(Panel(name, "ascent steps", "gap, relative to the maximum", traces, log="xy"))
    early, late = (max(float(r[key]) for r in rows) for key in ("after_50", "at_end"))
    words = [
        f"After the paper's 50 steps of {s.step:g} the ascent misses at most {early:.1e} of the maximum (late in "
        f"training, where the gradient is small), and after {s.steps} steps {late:.1e}."
    ]
    title = "Projected ascent against the closed form of the sharpness"
    figure = _sparse_ticks(picture(title, " ".join(words), *panels), "yaxis", "yaxis2")
    return Result({"sizes": vars(s), "rows": rows}, figure, words)


def _sparse_ticks(figure: dict[str, Any], *axes: str) -> dict[str, Any]:
    """Ticks at every fourth power of ten, for logarithmic axes with a large range."""
    for axis in axes:
        figure["layout"][axis]["dtick"] = 4
    return figure


def _relative_gap(draws: Draws, gradient: Array, radius: float, s: AscentSizes) -> Array:
    maximum = ball_maximum(draws.curvature, gradient, radius).value
    gap: Array = (1 - ascent(draws.curvature, gradient, radius, s.step, s.steps) / maximum).max(1)
    return gap
