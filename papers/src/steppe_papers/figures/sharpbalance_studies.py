"""Studies of SharpBalance (Lu et al. 2024): its Figures 1b, 2, 8, 9 and 10, and checks of its closed forms.

The paper's text gives the sizes, the ranges of rho and of k, and the step size of the ascent. It does not give the
training step sizes, the radius of sharpness and the scales of the weights, so these values are steppe's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steppe.extend import BLUE, GREEN, GREY, ORANGE, VERMILLION

from . import sharpbalance as sb
from .panels import Panel, dots, line, picture
from .quadratic import ascent, ball_maximum
from .registry import Result, Settings
from .simulation import Measured, Protocol, draw
from .wishart import contraction

Row = dict[str, Any]
Case = tuple[float, float, int]  # eta, rho, k
Cases = Mapping[str, Sequence[Case]]  # the points of a curve, by the title of its panel

QUICK: dict[str, Any] = {"matrices": 8, "starts": 10, "rows": 600, "columns": 30, "test_rows": 200}
POINTS = 9  # per curve

# eta and k; stable for eta < 2 / (b + rho b^2) = 0.0042 at rho = 0.5
SAM_PANELS = ((0.001, 5), (0.003, 5), (0.002, 10))
PART_PANELS = ((0.005, 5), (0.02, 5), (0.01, 10))  # a part has a tenth of the curvature
OTHER_PARTS = ((0.005, 5), (0.005, 10), (0.01, 5), (0.01, 15))  # beside those of Figure 1b
LARGE, SMALL = (0.5, 0.3), (1.0, 0.4)  # ranges of rho: appendix C.3, and Figure 8a
RANGE = "and simulation, rho from 0.5 to 0.3"
ITERATIONS = range(1, 16)  # Figure 8b
SAM_BOUNDS = (  # name, key, colour and dash
    ("upper, printed", "upper_printed", VERMILLION, "solid"),
    ("lower, printed", "lower_printed", VERMILLION, "dot"),
    ("lower, G corrected", "lower_corrected", GREY, "dot"),
    ("lower, with the variance itself", "lower", GREEN, "dash"),
    ("limit", "limit", ORANGE, "solid"),
)
PART_BOUNDS = (
    ("upper, C printed", "upper_printed", VERMILLION, "solid"),
    ("upper, C corrected", "upper", GREEN, "dash"),
)


def figure_2(settings: Settings) -> Result:
    """One curve over rho, with the upper bound to its right and the lower bounds to its left."""
    return _figure(settings, f"Theorem 1 {RANGE} (Figure 2)", _over_rho((0.002, 5)), parts=False)


def figure_9(settings: Settings) -> Result:
    """As Figure 2, for several step sizes and numbers of steps."""
    return _figure(settings, f"Theorem 1 {RANGE} (Figure 9)", _over_rho(*SAM_PANELS), parts=False)


def figure_8(settings: Settings) -> Result:
    """Members trained on parts: a curve over rho and one over the number of steps."""
    cases = {
        "(a) rho from 1 to 0.4: k = 5, eta = 0.01": [(0.01, float(r), 5) for r in np.linspace(*SMALL, POINTS)],
        "(b) k from 1 to 15: rho = 0.5, eta = 0.01": [(0.01, 0.5, k) for k in ITERATIONS],
    }
    return _figure(settings, "Theorem 2 and simulation (Figure 8)", cases, parts=True)


def figure_10(settings: Settings) -> Result:
    """As Figure 8a, for several step sizes and numbers of steps."""
    return _figure(settings, f"Theorem 2 {RANGE} (Figure 10)", _over_rho(*PART_PANELS), parts=True)


def _over_rho(*panels: tuple[float, int]) -> Cases:
    """A curve over the large radii for each step size and number of steps."""
    return {f"k = {k}, eta = {eta}": [(eta, float(rho), k) for rho in np.linspace(*LARGE, POINTS)] for eta, k in panels}


def figure_1b(settings: Settings) -> Result:
    """Diversity against sharpness, trained on all rows and on parts, in closed form and simulated."""
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, parts=True, tick=settings.tick)
    radii = [float(r) for r in np.linspace(0, 1, 11)]
    sam, part = [(0.0005, rho, 5) for rho in radii], [(0.01, rho, 10) for rho in radii]
    rows = [_point(draws.sam, case, sam_bounds(protocol, case)) for case in sam]
    part_rows = [_point(draws.sharpbalance, case, part_bounds(protocol, case)) for case in part]
    others = [[_row(draws.sharpbalance(eta, r, k), eta=eta, rho=r, k=k) for r in radii] for eta, k in OTHER_PARTS]
    sharpness, diversity = np.array([r["sharpness"] for r in rows]), np.array([r["diversity"] for r in rows])
    for r in (r for of_one in (part_rows, *others) for r in of_one):
        for key in ("sharpness", "alone"):
            at = np.interp(r[key], sharpness[::-1], diversity[::-1], left=np.nan, right=np.nan)
            r[f"sam_at_same_{key}"] = float(at)
    heading = "SAM: k = 5, eta = 0.0005; parts: k = 10, eta = 0.01; rho from 0 to 1"
    words = [
        f"{heading}. The paper prints neither steps k nor rates eta: these are ours.",
        _advantage(part_rows, "sharpness", "the mean over parts, as in Theorem 2"),
        _advantage(part_rows, "alone", "the expected members of the parts"),
        f"With other steps and rates of the parts the largest of these factors are {', '.join(map(_largest, others))}.",
        "Lines are the upper bounds with exact moments, points are simulated.",
    ]
    traces = []
    for name, curve, bound, measured, colour in (
        ("SAM", rows, "upper", "sharpness", BLUE),
        ("parts: sharpness of their mean", part_rows, "upper", "sharpness", ORANGE),
        ("parts: sharpness of the members", part_rows, "upper_alone", "alone", GREEN),
    ):
        traces.append(line(name, [r[bound] for r in curve], [r["diversity_exact"] for r in curve], colour))
        traces.append(dots(name, [r[measured] for r in curve], [r["diversity"] for r in curve], colour))
    panel = Panel(heading, "sharpness", "diversity", traces)
    title = "Sharpness and diversity, trained on all rows and on parts (Figure 1b)"
    data = _data(protocol, settings, sam=rows, sharpbalance=part_rows, others=others)
    return Result(data, picture(title, panel), words)


def _figure(settings: Settings, title: str, cases: Cases, parts: bool) -> Result:
    """One panel per case: the bounds of Theorem 1, or of Theorem 2 for parts, beside the simulation."""
    protocol = settings.of(Protocol(), **QUICK)
    draws = draw(protocol, settings.seed, parts=parts, tick=settings.tick)
    measure, bounds = (draws.sharpbalance, part_bounds) if parts else (draws.sam, sam_bounds)
    curves = {name: [_point(measure, c, bounds(protocol, c)) for c in points] for name, points in cases.items()}
    rows = [r for curve in curves.values() for r in curve]
    words = [
        _gaps("diversity", rows, "diversity_printed", "diversity_exact"),
        _gaps("sharpness", rows, "upper_printed", "upper"),
        *([] if parts else [_gaps("sharpness", rows, "lower_printed", "lower_corrected", "lower", "limit")]),
        _ascent_gap(rows),
    ]
    panels = []
    for name, curve in curves.items():
        traces = [*(_curve(*style, curve) for style in (PART_BOUNDS if parts else SAM_BOUNDS)), _simulated(curve)]
        limits = None if parts else (0, 1.08 * max(r["diversity"] for r in curve))
        panels.append(Panel(name, "sharpness", "diversity", traces, range_y=limits))
    panels += [_relative_bounds(rows)] if len(curves) == 1 else []
    return Result(_data(protocol, settings, panels=curves), picture(title, *panels), words)


def _relative_bounds(rows: Sequence[Row]) -> Panel:
    """The relative distance of each bound from the simulated sharpness, over rho."""
    rho = [r["rho"] for r in rows]
    traces = [
        line(name, rho, [r[bound] / r["sharpness"] - 1 for r in rows], colour, line={"dash": dash})
        for name, bound, colour, dash in SAM_BOUNDS
        if bound != "lower_corrected"
    ]
    error = {"type": "data", "array": [r["sharpness_error"] / r["sharpness"] for r in rows], "thickness": 1, "width": 2}
    traces.append(dots("simulated", rho, [0.0] * len(rho), BLUE, error_y=error))
    return Panel("bound / simulation - 1", "rho", "relative distance", traces)


def _factors(rows: Sequence[Row], key: str) -> list[float]:
    """The diversity of members trained on parts over that of SAM's, where the two curves have a sharpness in common."""
    return [r["diversity"] / r[f"sam_at_same_{key}"] for r in rows if np.isfinite(r[f"sam_at_same_{key}"])]


def _largest(rows: Sequence[Row]) -> str:
    most = (max(_factors(rows, key), default=np.nan) for key in ("sharpness", "alone"))
    return f"{' and '.join(f'{factor:.2f}' for factor in most)} (k = {rows[0]['k']}, eta = {rows[0]['eta']})"


def _advantage(rows: Sequence[Row], key: str, whose: str) -> str:
    ratios = _factors(rows, key)
    if not ratios:
        return f"With the sharpness of {whose}, the two curves have no sharpness in common."
    return (
        f"At equal sharpness, measured on {whose}, members trained on parts have {min(ratios):.2f} to "
        f"{max(ratios):.2f} times the diversity of SAM's ({len(ratios)} points)."
    )


def _curve(name: str, bound: str, colour: str, dash: str, rows: Sequence[Row]) -> dict[str, Any]:
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


# -- checks outside the range of the figures ---------------------------------------------------------------------------


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
    return Result({"sizes": vars(s), "rows": rows}, picture(title, *panels), words)


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
        gradient = -draws.curvature * contraction(draws.curvature, eta, rho) ** k * draws.teacher
        for n, radius in enumerate(s.radii):
            maximum = ball_maximum(draws.curvature, gradient, radius).value
            gap = (1 - ascent(draws.curvature, gradient, radius, s.step, s.steps) / maximum).max(1)
            at_50 = float(gap[min(49, s.steps - 1)])
            rows.append({"case": name, "radius": radius, "after_50": at_50, "at_end": float(gap[-1])})
            y = np.maximum(gap, 1e-17)
            traces.append(line(f"radius {radius:g}", np.arange(1, s.steps + 1), y, colours[n % len(colours)]))
        panels.append(Panel(name, "ascent steps", "gap, relative to the maximum", traces, log="xy", powers=4))
    early, late = (max(float(r[key]) for r in rows) for key in ("after_50", "at_end"))
    words = [
        f"After the paper's 50 steps of {s.step:g} the ascent misses at most {early:.1e} of the maximum (late in "
        f"training, where the gradient is small), and after {s.steps} steps {late:.1e}."
    ]
    title = "Projected ascent against the closed form of the sharpness"
    return Result({"sizes": vars(s), "rows": rows}, picture(title, *panels), words)
