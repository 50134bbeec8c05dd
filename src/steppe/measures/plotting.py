"""Plotly figures of slices and paths, and HTML pages that work offline."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil, floor, log10
from textwrap import shorten, wrap
from typing import Any, Literal

import numpy as np

from .._util.files import atomic_write
from .landscape import Array, Slice
from .paths import Path

View = Literal["contour", "surface"]
# Okabe and Ito's colours and cividis: distinguishable with any colour vision, and in grey
BLUE, ORANGE, VERMILLION, GREY = "#0072B2", "#E69F00", "#D55E00", "#5F6368"
SCALE = "Cividis"
WIDE = 20.0  # ratio of losses from which scales are logarithmic: equal steps would crowd the steepest corner
MOST = 12  # level lines: labels of more would overlap
BROKEN = "infinite or not a number"
CAPTION = 125  # characters per line below the figure


def figure(drawn: Slice | Path, view: View = "contour") -> Any:
    """A plotly figure of a slice or a path.

    Parameters
    ----------
    drawn
        A slice with one axis becomes a line, with two axes a plane; a path is drawn with its barrier.
    view
        Of a plane: "contour" or "surface".

    """
    try:
        import plotly.graph_objects as go
    except ImportError as e:
        raise ImportError("figures need plotly, which is not installed: pip install plotly") from e
    shown = drawn.along if isinstance(drawn, Path) else drawn
    if shown.lowest is None:
        raise ValueError("no point of the grid has a finite loss: there is nothing to draw")
    if view not in (views := {"contour": _contour, "surface": _surface}):
        raise ValueError(f'a plane is drawn as "contour" or "surface", not as {view!r}')
    draw: Any = _path if isinstance(drawn, Path) else _line if len(shown.axes) == 1 else views[view]
    fig = draw(go, drawn)
    lines = wrap(caption(drawn), CAPTION)
    fig.add_annotation(
        text="<br>".join(lines), xref="paper", yref="paper", x=0, y=0, xanchor="left", yanchor="top", yshift=-72,
        showarrow=False, align="left", font={"size": 13, "color": GREY},
    )  # fmt: skip
    fig.update_layout(
        template="plotly_white", width=960, height=710 + 18 * len(lines), font={"size": 15},
        margin={"l": 90, "r": 40, "t": 100, "b": 85 + 18 * len(lines)},
        legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        xaxis={"ticks": "outside"}, yaxis={"ticks": "outside"},
    )  # fmt: skip
    return fig


def write_html(drawn: Slice | Path, path: str | os.PathLike[str], view: View = "contour") -> None:
    """Write a figure as a self-contained HTML page, atomically.

    Parameters
    ----------
    drawn, view
        As in `figure`.
    path
        The file to write.

    """
    fig = figure(drawn, view)
    page = fig.to_html(include_plotlyjs=True, full_html=True, div_id="figure")
    with atomic_write(path) as file:
        file.write(page.replace("<head>", f"<head><title>{fig.layout.title.text}</title>", 1).encode())


def caption(drawn: Slice | Path) -> str:
    """A description of the data: points, cost, directions, and what is missing."""
    shown = drawn.along if isinstance(drawn, Path) else drawn
    parts = [" by ".join(str(n) for n in shown.losses.shape) + f" points, {shown.cost}"]
    letters = "t" if isinstance(drawn, Path) else "xy"
    for letter, name, length in zip(letters, shown.names, shown.lengths, strict=False):
        way = name if name.startswith("towards") else f"along {name}"
        parts.append(f"one unit of {letter} is a length of {length:.4g} {way}")
    if shown.cosine is not None:
        parts.append(f"cosine between the two {shown.cosine:.3f}")
    if isinstance(drawn, Path):
        parts.append(f"floating-point buffers: {drawn.buffers}")
        parts += [f"{len(drawn.kept)} tensors that differ were kept, such as {drawn.kept[0]}"] if drawn.kept else []
    parts += [f"{shown.nonfinite} losses infinite or not a number"] if shown.nonfinite else []
    parts += [] if shown.complete else [f"stopped early, after {int(shown.filled.sum())} points"]
    return "; ".join(parts) + "."


def levels(low: float, high: float) -> list[float]:
    """Round numbers between two losses for contours; 1, 2, 5 times powers of ten if the range is wide."""
    if low > 0 and high / low >= WIDE:
        for digits in ((1, 2, 5), (1, 3), (1,)):
            powers = range(floor(log10(low)), ceil(log10(high)) + 1)
            marks = [float(f"{d}e{k}") for k in powers for d in digits if low < float(f"{d}e{k}") < high]
            if len(marks) <= MOST:
                return marks
        return marks[:: ceil(len(marks) / MOST)]
    rough = (high - low) / MOST
    if rough <= 1e-12 * max(abs(low), abs(high)):  # equal up to rounding
        return []
    power = 10.0 ** floor(log10(rough))
    step = next(d * power for d in (1, 2, 5, 10) if d * power >= rough)
    return [k * step for k in range(floor(low / step) + 1, ceil(high / step))]


def texts(marks: list[float]) -> tuple[list[str], int]:
    """Format round numbers with as few digits as all of them need, and the number of digits."""
    digits = next((p for p in range(4, 15) if all(abs(float(f"{v:.{p}g}") - v) <= 1e-9 * abs(v) for v in marks)), 15)
    return [f"{v:.{digits}g}".replace("e-0", "e-").replace("e+0", "e+") for v in marks], digits


def _curve(fig: Any, x: Array, losses: Array, letter: str) -> None:
    hover = f"{letter} = %{{x:.4g}}<br>loss %{{y:.5g}}<extra></extra>"
    style = {"line": {"color": BLUE, "width": 2.5}, "marker": {"size": 6}, "showlegend": letter == "t"}
    fig.add_scatter(x=x, y=_finite(losses), mode="lines+markers", name="loss", hovertemplate=hover, **style)


def _line(go: Any, shown: Slice) -> Any:
    x, fig = shown.axes[0], go.Figure()
    _curve(fig, x, shown.losses, "x")
    _mark(fig, shown, lambda i: {"x": [x[i[0]]], "y": [shown.losses[i]]})
    for k, at in enumerate(x[shown.filled & ~np.isfinite(shown.losses)]):
        line = {"color": VERMILLION, "dash": "dot", "width": 1}
        fig.add_vline(x=at, line=line, name=BROKEN, showlegend=k == 0)
    fig.update_layout(title="Loss on a line through the weights")
    fig.update_xaxes(title=_axis(shown, 0))
    fig.update_yaxes(title="loss, log scale" if _wide(shown) else "loss", **_ticks(shown))
    return fig


def _path(go: Any, drawn: Path) -> Any:
    t, ends, fig = drawn.t, drawn.losses[[0, -1]], go.Figure()
    _curve(fig, t, drawn.losses, "t")
    if np.isfinite(ends).all():
        style = {"line": {"color": GREY, "dash": "dash", "width": 1.5}, "hoverinfo": "skip"}
        fig.add_scatter(x=[0, 1], y=ends, mode="lines", name="line between the ends", **style)
    if np.isfinite(ends).all() and not drawn.along.nonfinite:
        height, top = drawn.barrier().value, drawn.top
        foot = (1 - top) * ends[0] + top * ends[1]
        style = {"line": {"color": VERMILLION, "width": 3}, "hoverinfo": "skip"}
        name = f"barrier {height:.4g} at t = {top:.3g}"
        fig.add_scatter(x=[top, top], y=[foot, foot + height], mode="lines", name=name, **style)
    fig.update_layout(title="Loss on the line between two checkpoints")
    fig.update_xaxes(title="t: 0 is the model, 1 is " + drawn.along.names[0].removeprefix("towards "))
    fig.update_yaxes(title="loss")
    return fig


def _contour(go: Any, shown: Slice) -> Any:
    """A smooth fill, and one trace per level line, because plotly's own levels are equidistant."""
    (x, y), z, fig = shown.axes, _finite(shown.losses).T, go.Figure()
    low, high = _range(shown)
    fig.add_contour(
        x=x, y=y, z=_height(shown).T, customdata=z, colorscale=SCALE, line={"width": 0},
        contours={"coloring": "heatmap"}, colorbar=_colorbar(shown),
        hovertemplate="x = %{x:.4g}<br>y = %{y:.4g}<br>loss %{customdata:.5g}<extra></extra>",
    )  # fmt: skip
    middle = (low * high) ** 0.5 if _wide(shown) else (low + high) / 2  # of the colour scale
    lines = levels(low, high)
    for level in lines:
        ink = "black" if level > middle else "white"
        fig.add_contour(
            x=x, y=y, z=z, hoverinfo="skip", showscale=False, line={"color": ink, "width": 1}, showlegend=False,
            contours={"coloring": "none", "start": level, "end": level, "size": 1, "showlabels": True,
                      "labelfont": {"size": 13, "color": ink}, "labelformat": f".{texts(lines)[1]}~g"},
        )  # fmt: skip
    bad = np.argwhere(shown.filled & ~np.isfinite(shown.losses))
    if len(bad):
        fig.add_scatter(
            x=x[bad[:, 0]], y=y[bad[:, 1]], mode="markers", name=BROKEN, cliponaxis=False,
            marker={"symbol": "x-thin", "size": 9, "line": {"color": VERMILLION, "width": 2}},
        )  # fmt: skip
    _mark(fig, shown, lambda i: {"x": [x[i[0]]], "y": [y[i[1]]]})
    fig.update_layout(title="Loss in a plane through the weights")
    fig.update_xaxes(title=_axis(shown, 0), zeroline=False, range=[x.min(), x.max()])
    fig.update_yaxes(title=_axis(shown, 1), zeroline=False, range=[y.min(), y.max()])
    return fig


def _surface(go: Any, shown: Slice) -> Any:
    (x, y), fig = shown.axes, go.Figure()
    fig.add_surface(
        x=x, y=y, z=_finite(shown.losses).T, surfacecolor=_height(shown).T, colorscale=SCALE, colorbar=_colorbar(shown),
        hovertemplate="x = %{x:.4g}<br>y = %{y:.4g}<br>loss %{z:.5g}<extra></extra>",
    )  # fmt: skip
    fig.update_layout(
        title="Loss over a plane through the weights",
        scene={
            "xaxis": {"title": {"text": "x"}}, "yaxis": {"title": {"text": "y"}},
            "zaxis": {"title": {"text": "loss"}, **_ticks(shown)}, "aspectmode": "cube",
            "camera": {"eye": {"x": 1.3, "y": -1.5, "z": 0.85}, "center": {"x": 0, "y": 0, "z": -0.2}},
        },
    )  # fmt: skip
    return fig


def _mark(fig: Any, shown: Slice, at: Callable[[tuple[int, ...]], dict[str, Any]]) -> None:
    """Mark the weights, and the lowest point if its loss is lower."""
    origin = [np.flatnonzero(axis == 0) for axis in shown.axes]
    centre = tuple(int(i[0]) for i in origin) if all(len(i) for i in origin) else None
    marks = [("the weights", centre, "circle", "white"), ("lowest point of the grid", shown.lowest, "star", ORANGE)]
    lowest = np.inf
    for name, place, symbol, colour in marks:
        if place is not None and shown.losses[place] < lowest:
            lowest = shown.losses[place]
            label = f"{name} (loss {lowest:.6g})"
            fig.add_scatter(
                **at(place), mode="markers", name=label, hovertemplate=f"{label}<extra></extra>", cliponaxis=False,
                marker={"symbol": symbol, "size": 13, "color": colour, "line": {"color": "black", "width": 1}},
            )  # fmt: skip


def _axis(shown: Slice, k: int) -> str:
    return f"{'xy'[k]}: {shorten(shown.names[k], 60, placeholder=' ...')}"


def _finite(losses: Array) -> Array:
    return np.where(np.isfinite(losses), losses, np.nan)


def _range(shown: Slice) -> tuple[float, float]:
    finite = shown.losses[np.isfinite(shown.losses)]
    return float(finite.min()), float(finite.max())


def _wide(shown: Slice) -> bool:
    low, high = _range(shown)
    return low > 0 and high / low >= WIDE


def _height(shown: Slice) -> Array:
    """The values of the colour scale: the loss, or its logarithm if the range is wide."""
    return np.log10(_finite(shown.losses)) if _wide(shown) else _finite(shown.losses)


def _colorbar(shown: Slice) -> dict[str, Any]:
    marks = levels(*_range(shown))
    heights = [log10(v) if _wide(shown) else v for v in marks]
    return {"title": {"text": "loss"}, "tickvals": heights, "ticktext": texts(marks)[0]}


def _ticks(shown: Slice) -> dict[str, Any]:
    """An axis of losses: logarithmic, with ticks at the contour levels, if the range is wide."""
    marks = levels(*_range(shown))
    return {"type": "log", "tickvals": marks, "ticktext": texts(marks)[0]} if _wide(shown) else {}
