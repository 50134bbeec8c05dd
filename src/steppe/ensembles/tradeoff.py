"""Sharpness against diversity over radii (Lu et al. 2024, Figures 4 and 11): a fitted slope and a figure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import exp, inf, isfinite, log, nan, sqrt
from typing import Any

from ..measures.estimate import Estimate
from .summary import Report

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito: safe for colour-blind readers
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
PLACES = ("top right", "bottom right", "top left", "bottom left")  # of labels: those of two series do not overlap
GREY = "#5F6368"
DIVERSITIES: Mapping[str, str] = {
    "der": "disagreement error ratio (Eq. 2)",
    "variance": "variance of probabilities (Eq. 1)",
    "logit_variance": "variance of logits (Eq. 1)",
    "kl": "Kullback-Leibler divergence (Eq. 11)",
    "disagreement": "disagreement",
}


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Return the slope of log y over log x by least squares, with its standard error (points - 2 degrees of freedom).

    Parameters
    ----------
    x, y
        The points. Those without a logarithm are left out; the slope is NaN if fewer than two different x remain.

    """
    pairs = [(log(a), log(b)) for a, b in zip(x, y, strict=True) if 0 < a < inf and 0 < b < inf]
    n = len(pairs)
    mean_x, mean_y = (sum(v) / n for v in zip(*pairs, strict=True)) if n else (nan, nan)
    spread = sum((a - mean_x) ** 2 for a, _ in pairs)
    note = "" if n == len(x) else f"{len(x) - n} of {len(x)} points have no logarithm"
    if n < 2 or not spread:
        return Estimate(nan, nan, n, "plug-in", note=note or "there are not two different points")
    beta = sum((a - mean_x) * (b - mean_y) for a, b in pairs) / spread
    left = sum((b - mean_y - beta * (a - mean_x)) ** 2 for a, b in pairs)
    return Estimate(beta, sqrt(left / (n - 2) / spread) if n > 2 else nan, n, "plug-in", note=note)


def slopes(reports: Sequence[Report], diversity: str = "der") -> dict[str, Estimate]:
    """Return the slope of every strategy over the ensembles of its radii.

    Parameters
    ----------
    reports
        One per ensemble.
    diversity
        A key of `DIVERSITIES`.

    """
    fitted = {}
    for name in dict.fromkeys(r.strategy for r in reports):
        mine = [r for r in reports if r.strategy == name]
        fitted[name] = slope([r.sharpness.value for r in mine], [r.scores[diversity].value for r in mine])
    return fitted


def figure(reports: Sequence[Report], diversity: str = "der", sharpness: str = "sharpness") -> Any:
    """Return a plotly figure: one point per ensemble with its radius and errors over members, one line per strategy."""
    try:
        import plotly.graph_objects as go
    except ImportError as e:
        raise ImportError("drawing needs plotly, which is not installed: pip install plotly") from e
    fig = go.Figure()
    for number, (name, fitted) in enumerate(slopes(reports, diversity).items()):
        mine = [r for r in reports if r.strategy == name]
        colour, symbol = COLOURS[number % len(COLOURS)], SYMBOLS[number % len(SYMBOLS)]
        xs, ys = [r.sharpness for r in mine], [r.scores[diversity] for r in mine]
        fig.add_scatter(
            x=[e.value for e in xs], y=[e.value for e in ys], mode="markers+text", name=_label(name, fitted),
            text=["" if r.rho is None else f"{r.rho:g}" for r in mine], textposition=PLACES[number % len(PLACES)],
            textfont={"color": colour, "size": 13}, marker={"size": 11, "color": colour, "symbol": symbol},
            error_x=_bars(xs, colour), error_y=_bars(ys, colour),
            customdata=[[r.scores["eir"].value, r.scores["accuracy"].value] for r in mine],
            hovertemplate="rho %{text}<br>sharpness %{x:.4g}<br>diversity %{y:.4g}<br>EIR %{customdata[0]:.3f}<br>"
                          "accuracy %{customdata[1]:.2%}<extra>" + name + "</extra>",
        )  # fmt: skip
        line = _line([e.value for e in xs], [e.value for e in ys], fitted)
        if line:
            fig.add_scatter(
                x=line[0], y=line[1], mode="lines", line={"color": colour, "dash": "dash"}, hoverinfo="skip",
                showlegend=False,
            )  # fmt: skip
    note = (
        "Every point is an ensemble, its label the radius. Bars: one standard error over members (jackknife).<br>"
        "Dashed: least squares on logarithms; its slope with one standard error."
    )
    fig.add_annotation(
        text=note, xref="paper", yref="paper", x=0, y=0, xanchor="left", yanchor="top", yshift=-72, showarrow=False,
        align="left", font={"size": 12, "color": GREY},
    )  # fmt: skip
    fig.update_layout(
        template="plotly_white", width=960, height=700, font={"size": 15}, title="Sharpness and diversity over radii",
        margin={"l": 90, "r": 40, "t": 110, "b": 110},
        legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
    )  # fmt: skip
    fig.update_xaxes(type="log", title=f"sharpness of members: {sharpness}", ticks="outside")
    fig.update_yaxes(type="log", title=f"diversity: {DIVERSITIES[diversity]}", ticks="outside")
    return fig


def write_html(fig: Any, path: str | os.PathLike[str]) -> None:
    """Write a self-contained page with the figure."""
    from .._util.files import atomic_write

    page: str = fig.to_html(include_plotlyjs=True, full_html=True, div_id="figure")
    with atomic_write(path) as file:
        file.write(page.replace("<head>", f"<head><title>{fig.layout.title.text}</title>", 1).encode())


def _label(name: str, fitted: Estimate) -> str:
    if not isfinite(fitted.value):
        return name
    error = f" ± {fitted.stderr:.2f}" if isfinite(fitted.stderr) else ""
    return f"{name}: slope {fitted.value:.2f}{error}"


def _bars(estimates: Sequence[Estimate], colour: str) -> dict[str, Any]:
    bars = [e.stderr if isfinite(e.stderr) else 0.0 for e in estimates]
    return {"type": "data", "array": bars, "color": colour, "thickness": 1, "width": 4}


def _line(x: Sequence[float], y: Sequence[float], fitted: Estimate) -> tuple[list[float], list[float]] | None:
    """Return the ends of the fitted line."""
    good = [(a, b) for a, b in zip(x, y, strict=True) if 0 < a < inf and 0 < b < inf]
    if not isfinite(fitted.value):
        return None
    middle = [sum(log(v) for v in side) / len(good) for side in zip(*good, strict=True)]
    ends = [min(a for a, _ in good), max(a for a, _ in good)]
    centre_x, centre_y = middle
    return ends, [exp(centre_y + fitted.value * (log(a) - centre_x)) for a in ends]
