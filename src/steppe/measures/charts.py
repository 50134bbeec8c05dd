"""Plotly figures of numbers: measures over their radii and over batches, and the density of a spectrum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from .._util.extras import explained
from .._util.measure_names import MeasureName
from .._util.pages import BLUE, IN_TURN, VERMILLION
from .curvature.lanczos import Density
from .estimate import Estimate

POINTS = 1000  # of the curve of a density


def over_radii(estimates: Mapping[str, Estimate]) -> Any:
    """A plotly figure of definitions over their radii, one line each, with 95 % intervals.

    Estimates are given by name; those without a radius, `NAME@RADIUS`, are left out.
    """
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for text, estimate in estimates.items():
        name = MeasureName.of(text)
        if name.radius is not None:
            label = str(MeasureName(name.base, None, name.options))
            lines.setdefault(label, []).append((float(name.radius), estimate))
    if not any(len(points) > 1 for points in lines.values()):
        raise ValueError(
            "there is no picture of single numbers: measure a definition at several radii, such as "
            'measures="worst_linf@0.001, worst_linf@0.002", or at a grid of a paper, "avg_l2@vit-cifar10"'
        )
    fig = _figure("Sharpness over the radius of the ball", "radius", "sharpness")
    for k, (label, points) in enumerate(lines.items()):
        points.sort(key=lambda point: point[0])
        line = {"color": IN_TURN[k % len(IN_TURN)]}
        fig.add_scatter(**_with_intervals(points), name=label, mode="lines+markers", line=line, showlegend=True)
    fig.update_xaxes(type="log")
    return fig


def over_batches(parts: Sequence[tuple[int, Estimate]], mean: Estimate) -> Any:
    """A plotly figure of the value of every numbered batch, and of their mean, with 95 % intervals."""
    fig = _figure("Sharpness of each batch", "batch", "sharpness")
    low, high = mean.interval()
    if isfinite(high):
        fig.add_hrect(y0=low, y1=high, fillcolor=VERMILLION, opacity=0.15, line_width=0)
    fig.add_scatter(**_with_intervals(parts), mode="markers", name="batches", marker={"color": BLUE})
    numbers = [number for number, _ in parts]
    ends = [min(numbers), max(numbers)]
    fig.add_scatter(
        x=ends, y=[mean.value] * 2, mode="lines", line={"color": VERMILLION}, name=f"mean {mean}", showlegend=True
    )
    return fig


def _with_intervals(points: Sequence[tuple[float, Estimate]]) -> dict[str, Any]:
    """The points of a scatter plot, with bars for 95 % intervals where there are any."""
    widths = [e.interval()[1] - e.value for _, e in points]
    bars = {"type": "data", "array": [width if isfinite(width) else 0.0 for width in widths]}
    return {"x": [x for x, _ in points], "y": [e.value for _, e in points], "error_y": bars}


def spectrum(density: Density) -> Any:
    """A plotly figure of the density of a spectrum, on a logarithmic scale, with its standard error."""
    margin = 0.05 * ((density.largest - density.smallest) or abs(density.largest) or 1.0)
    grid = np.linspace(density.smallest - margin, density.largest + margin, POINTS)
    heights, errors = density.curve(grid)
    fig = _figure(f"Density of {density.dimension} eigenvalues", "eigenvalue", "density")
    if len(density.runs) > 1:
        outline = np.concatenate([heights + errors, np.maximum(heights - errors, 0.0)[::-1]])
        fig.add_scatter(
            x=np.concatenate([grid, grid[::-1]]), y=outline, fill="toself", line={"width": 0}, mode="lines",
            fillcolor="rgba(0, 114, 178, 0.25)", name="standard error", hoverinfo="skip",
        )  # fmt: skip
    fig.add_scatter(x=grid, y=heights, mode="lines", line={"color": BLUE}, name="density")
    top = float(np.log10(heights.max()))
    fig.update_yaxes(type="log", range=[top - 8, top + 0.5])  # isolated eigenvalues have a share of 1 / dimension
    return fig


def _figure(title: str, x: str, y: str) -> Any:
    with explained():
        import plotly.graph_objects as go
    fig = go.Figure()
    fig.update_layout(title=title, template="plotly_white", font={"size": 15})
    fig.update_xaxes(title=x)
    fig.update_yaxes(title=y)
    return fig
