"""Sharpness against diversity over radii (Lu et al. 2024, Figures 4 and 11): slopes with intervals, and a page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, floor, inf, isfinite, log, log10, nan, sqrt
from typing import Any

from .._util.pages import GREY, IN_TURN, write_figure_page
from ..measures.estimate import Estimate
from .summary import Report

Series = Mapping[str, Sequence[Report]]
"""Ensembles by the label of their series: one point each, one slope per series."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
GAP = 0.13  # between panels
DIVERSITIES: Mapping[str, str] = {
    "der": "disagreement error ratio (Eq. 2)",
    "variance": "variance of probabilities (Eq. 1)",
    "logit_variance": "variance of logits (Eq. 1)",
    "kl": "Kullback-Leibler divergence (Eq. 11)",
    "disagreement": "disagreement",
}
ROWS: Mapping[str, str] = {"test": "test rows", "corrupted": "corrupted test rows"}


def by_strategy(reports: Iterable[Report]) -> dict[str, list[Report]]:
    """Group ensembles into one series per strategy."""
    series: dict[str, list[Report]] = {}
    for report in reports:
        series.setdefault(report.strategy, []).append(report)
    return series


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The slope of log y over log x by least squares, with its standard error (points - 2 degrees of freedom).

    Parameters
    ----------
    x, y
        The points. Those without a logarithm are left out; the slope is NaN if fewer than two different x remain.

    Examples
    --------
    >>> fitted = steppe.ensembles.slope([1, 2, 4], [3, 12, 48])  # 3 x^2
    >>> round(fitted.value, 4), fitted.n
    (2.0, 3)

    """
    pairs = [(log(a), log(b)) for a, b in zip(x, y, strict=True) if 0 < a < inf and 0 < b < inf]
    fitted = least_squares(pairs)
    missing = len(x) - len(pairs)
    return replace(fitted, note=f"{missing} of {len(x)} points have no logarithm") if missing else fitted


def least_squares(points: Sequence[tuple[float, float]]) -> Estimate:
    """Return the slope of y over x, with its standard error (points - 2 degrees of freedom).

    Parameters
    ----------
    points
        Pairs (x, y). The slope is NaN if fewer than two have different x.

    """
    n = len(points)
    mean_x, mean_y = (sum(v) / n for v in zip(*points, strict=True)) if n else (nan, nan)
    spread = sum((a - mean_x) ** 2 for a, _ in points)
    if n < 2 or not spread:
        return Estimate(nan, nan, n, "plug-in", note="there are not two different points")
    beta = sum((a - mean_x) * (b - mean_y) for a, b in points) / spread
    left = sum((b - mean_y - beta * (a - mean_x)) ** 2 for a, b in points)
    return Estimate(beta, sqrt(left / (n - 2) / spread) if n > 2 else nan, n, "plug-in")


def slope_interval(fitted: Estimate, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of a `slope`, by Student's t with points - 2 degrees of freedom; NaN below three.

    Parameters
    ----------
    fitted
        The slope.
    level
        The confidence level.

    """
    if fitted.n < 3:
        return nan, nan
    return replace(fitted, n=fitted.n - 1).interval(level)  # Estimate.interval has n - 1 degrees of freedom


def diversity_of(report: Report, name: str, rows: str = "test") -> Estimate:
    """Return a diversity of an ensemble.

    Parameters
    ----------
    report
        The ensemble.
    name
        A key of `DIVERSITIES`.
    rows
        "test", or "corrupted" for all severities together.

    """
    if rows == "test":
        return report.scores[name]
    if not report.corrupted:
        raise ValueError(f"{report.path} has no scores on corrupted rows: train it with --corruptions")
    return report.corrupted[name]


def sharpness_of(report: Report) -> Estimate:
    """Return the mean sharpness of an ensemble's members."""
    if report.sharpness is None:
        raise ValueError(f"{report.path} has no sharpness: give `report` a measure, and `steppe ensemble` --sharpness")
    return report.sharpness


def slopes(series: Series, diversity: str = "der", rows: str = "test") -> dict[str, Estimate]:
    """The slope of every series over its ensembles.

    Parameters
    ----------
    series
        Ensembles by label, such as a width or a strategy.
    diversity, rows
        As in `diversity_of`.

    Examples
    --------
    >>> reports = [
    ...     steppe.ensembles.Report(
    ...         path, "deep", None, [], {"der": steppe.Estimate(3 * sharpness**2, 0.1, 3, "plug-in")},
    ...         sharpness=steppe.Estimate(sharpness, 0.1, 3, "plug-in"), matrices={},
    ...     )
    ...     for path, sharpness in [("a", 1.0), ("b", 2.0), ("c", 4.0)]
    ... ]
    >>> {label: round(fitted.value, 4) for label, fitted in steppe.ensembles.slopes({"deep": reports}).items()}
    {'deep': 2.0}

    """
    return {
        label: slope(
            [sharpness_of(r).value for r in reports], [diversity_of(r, diversity, rows).value for r in reports]
        )
        for label, reports in series.items()
    }


def figure(series: Series, diversity: str = "der", sharpness: str = "sharpness") -> dict[str, Any]:
    """Return a plotly figure: a panel of ensembles per kind of rows, and a panel of slopes with their intervals.

    Ensembles are points with their radius and their errors over members. The panel of corrupted rows exists if every
    ensemble has scores on them.

    Parameters
    ----------
    series, diversity
        As in `slopes`.
    sharpness
        The name of the measure, for the axis.

    """
    kinds = kinds_of(series)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"annotations": [], "shapes": [], "showlegend": True,
                              "legend": {"orientation": "h", "x": 0, "y": 1.1, "yanchor": "bottom"}}  # fmt: skip
    share = (1 - GAP * len(kinds)) / (len(kinds) + 1)
    for i, rows in enumerate(kinds):
        n = str(i + 1) if i else ""
        data += _points(series, diversity, rows, n)
        _axes(layout, n, i * (share + GAP), share, f"Diversity on {ROWS[rows]}", f"sharpness of members: {sharpness}")
        layout[f"xaxis{n}"] |= _logarithmic(sharpness_of(r).value for reports in series.values() for r in reports)
        values = (diversity_of(r, diversity, rows).value for reports in series.values() for r in reports)
        layout[f"yaxis{n}"] |= _logarithmic(values) | {"title": {"text": DIVERSITIES[diversity]}}
    n = str(len(kinds) + 1)
    _axes(layout, n, len(kinds) * (share + GAP), share, "Slopes", "slope on logarithms with its 95 % interval")
    fitted = {rows: slopes(series, diversity, rows) for rows in kinds}
    layout[f"xaxis{n}"] |= {"range": _room([e for each in fitted.values() for e in each.values()])}
    # rows of the last panel are numbers, not categories: two points of a series stand beside each other
    ticks = {"tickvals": [*range(len(series))], "ticktext": [*series], "range": [len(series) - 0.4, -0.6]}
    layout[f"yaxis{n}"] |= {**ticks, "showgrid": False, "zeroline": False}
    layout["shapes"].append(
        {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "xref": f"x{n}", "yref": f"y{n} domain",
         "line": {"color": GREY, "width": 1.5}}
    )  # fmt: skip
    for i, rows in enumerate(kinds):
        data += _slopes(fitted[rows], rows, n, 0.3 * (i - (len(kinds) - 1) / 2))
    return {"data": data, "layout": layout}


def write_page(
    series: Series, path: str | os.PathLike[str], title: str, diversity: str = "der", sharpness: str = "sharpness"
) -> None:
    """Write the figure as a self-contained page, atomically.

    Parameters
    ----------
    series, diversity, sharpness
        As in `figure`.
    path
        The file to write.
    title
        The heading, which names the ensembles.

    """
    made = figure(series, diversity, sharpness)
    write_figure_page(made, path, title, _caption(series, diversity, kinds_of(series)))


def slope_words(fitted: Estimate) -> str:
    """Return a slope and its interval as text."""
    if not isfinite(fitted.value):
        return "none"
    low, high = slope_interval(fitted)
    within = f" ({low:.2f} to {high:.2f})" if isfinite(low) else ""
    return f"{fitted.value:.2f}{within}".replace("-", "\u2212")


def kinds_of(series: Series) -> list[str]:
    """Return the keys of `ROWS` on which every ensemble has a diversity."""
    corrupted = all(r.corrupted for reports in series.values() for r in reports)
    return [*ROWS] if corrupted else ["test"]


def _caption(series: Series, diversity: str, kinds: Sequence[str]) -> str:
    parts = [
        "Every point is one ensemble; its label is the radius. Bars are one standard error over members (jackknife).",
        "Dashed lines are least squares on logarithms. A slope above zero means that sharper members are more diverse;",
        "intervals are by Student's t with two degrees of freedom fewer than ensembles.",
    ]
    if "corrupted" in kinds:
        parts.append("Diversity on corrupted rows is over all severities together. Open marks: its slopes.")
    for rows in kinds:
        each = (f"{label} {slope_words(e)}, {e.n} ensembles" for label, e in slopes(series, diversity, rows).items())
        parts.append(f"Slopes on {ROWS[rows]}: {'; '.join(each)}.")
    return " ".join(parts)


def _logarithmic(values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis with marks at round numbers that are written out."""
    positive = [v for v in values if 0 < v < inf]
    low, high = min(positive, default=1.0), max(positive, default=1.0)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if high / low < 8 else (1, 2, 5) if high / low < 1e3 else (1,)
    marks = [
        float(f"{step}e{power}") for power in range(floor(log10(low)) - 1, ceil(log10(high)) + 1) for step in steps
    ]
    return {"type": "log", "ticks": "outside", "tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}


def _room(fitted: Sequence[Estimate]) -> list[float]:
    """The ends of the axis of slopes: zero, all intervals, and room for their text."""
    ends = [end for e in fitted for end in (e.value, *slope_interval(e)) if isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    margin = 0.35 * ((high - low) or 1.0)
    return [low - margin, high + margin]


def _axes(layout: dict[str, Any], n: str, left: float, share: float, title: str, x: str) -> None:
    """Add a pair of axes with the title of the panel."""
    layout[f"xaxis{n}"] = {"domain": [left, left + share], "anchor": f"y{n}", "title": {"text": x}}
    layout[f"yaxis{n}"] = {"domain": [0, 1], "anchor": f"x{n}"}
    layout["annotations"].append(
        {"text": title, "xref": f"x{n} domain", "yref": f"y{n} domain", "x": 0, "y": 1, "xanchor": "left",
         "yanchor": "bottom", "yshift": 6, "showarrow": False, "font": {"size": 14}}
    )  # fmt: skip


def _points(series: Series, diversity: str, rows: str, n: str) -> list[dict[str, Any]]:
    """Points of one panel with their errors, and a fitted line per series."""
    traces: list[dict[str, Any]] = []
    fitted = slopes(series, diversity, rows)
    for number, (label, reports) in enumerate(series.items()):
        colour, symbol = IN_TURN[number % len(IN_TURN)], SYMBOLS[number % len(SYMBOLS)]
        xs, ys = [sharpness_of(r) for r in reports], [diversity_of(r, diversity, rows) for r in reports]
        axes = {"type": "scatter", "xaxis": f"x{n}", "yaxis": f"y{n}", "legendgroup": label}
        traces.append(axes | {
            "x": [e.value for e in xs], "y": [e.value for e in ys], "mode": "markers+text", "name": label,
            "showlegend": not n, "text": ["" if r.rho is None else f"{r.rho:g}" for r in reports],
            "textposition": "top center", "textfont": {"color": colour, "size": 11},
            "marker": {"size": 9, "color": colour, "symbol": symbol},
            "error_x": _bars(xs, colour), "error_y": _bars(ys, colour),
            "customdata": [[r.scores["eir"].value, r.scores["accuracy"].value] for r in reports],
            "hovertemplate": "radius %{text}<br>sharpness %{x:.4g}<br>diversity %{y:.4g}<br>"
                             "improvement rate %{customdata[0]:.3f}<br>accuracy %{customdata[1]:.2%}",
        })  # fmt: skip
        ends = _line([e.value for e in xs], [e.value for e in ys], fitted[label])
        if ends:
            style = {"color": colour, "dash": "dash"}
            traces.append(axes | {"x": ends[0], "y": ends[1], "mode": "lines", "line": style, "hoverinfo": "skip",
                                  "showlegend": False, "name": label})  # fmt: skip
    return traces


def _slopes(fitted: Mapping[str, Estimate], rows: str, n: str, offset: float) -> list[dict[str, Any]]:
    """One slope per series with its interval: filled for test rows, open for corrupted ones."""
    traces = []
    for number, (label, e) in enumerate(fitted.items()):
        if not isfinite(e.value):
            continue
        colour, symbol = IN_TURN[number % len(IN_TURN)], SYMBOLS[number % len(SYMBOLS)]
        end = slope_interval(e)[1]
        width = [end - e.value] if isfinite(end) else [0.0]
        traces.append({
            "type": "scatter", "xaxis": f"x{n}", "yaxis": f"y{n}", "legendgroup": label, "showlegend": False,
            "name": f"{label}, {ROWS[rows]}", "x": [e.value], "y": [number + offset], "mode": "markers+text",
            "text": [slope_words(e)], "textposition": "top center", "textfont": {"color": colour, "size": 11},
            "cliponaxis": False,
            "marker": {"size": 10, "color": colour, "symbol": symbol if rows == "test" else f"{symbol}-open"},
            "error_x": {"type": "data", "array": width, "color": colour, "thickness": 1.5, "width": 5},
            "hovertemplate": f"slope %{{text}}<br>{e.n} ensembles, {ROWS[rows]}",
        })  # fmt: skip
    return traces


def _bars(estimates: Sequence[Estimate], colour: str) -> dict[str, Any]:
    bars = [e.stderr if isfinite(e.stderr) else 0.0 for e in estimates]
    return {"type": "data", "array": bars, "color": colour, "thickness": 1, "width": 4}


def _line(x: Sequence[float], y: Sequence[float], fitted: Estimate) -> tuple[list[float], list[float]] | None:
    """Return the ends of the fitted line."""
    if not isfinite(fitted.value):
        return None
    points = [(a, b) for a, b in zip(x, y, strict=True) if 0 < a < inf and 0 < b < inf]
    centre_x, centre_y = (sum(log(v) for v in side) / len(points) for side in zip(*points, strict=True))
    ends = [min(points)[0], max(points)[0]]
    return ends, [exp(centre_y + fitted.value * (log(a) - centre_x)) for a in ends]
