"""Plotly figures of slices and paths with their captions, and HTML pages that work offline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil, floor, log10
from textwrap import shorten, wrap
from typing import Any, Literal

import numpy as np

from .._util.extras import explained
from .._util.pages import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION, write_figure_page
from .charts import spectrum
from .curvature.lanczos import Density
from .landscape import Array, Slice
from .paths import Path

View = Literal["contour", "surface"]
LINES = (BLUE, VERMILLION, GREEN, PURPLE)
SCALE = "Cividis"  # distinguishable with any colour vision, and in grey
WIDE = 20.0  # ratio of losses from which level lines are at powers of ten: equal steps would crowd the steepest corner
DECADES = 4  # of a logarithmic scale, below the largest rise; the rise at the weights themselves is 0
MOST = 12  # level lines: labels of more would overlap
GAP = 0.08  # between panels
BROKEN = "infinite or not a number"
CAPTION = 125  # characters per line below the figure
LOSS = "loss %{customdata:.5g}"  # beside the rise, where the pointer is


def figure(drawn: Slice | Path | Sequence[Slice] | Density, view: View = "contour", *, log: bool = False) -> Any:
    """A plotly figure of a slice, a path, several slices with one scale, or the density of a spectrum.

    Slices show the rise of the loss above the loss at the weights.

    Parameters
    ----------
    drawn
        A slice with one axis becomes a line, with two axes a plane; several become panels side by side. A path is
        drawn with its barrier. A density is drawn with its standard error.
    view
        Of a plane: "contour" or "surface".
    log
        Draw the rise on a logarithmic scale instead of a linear one.

    Examples
    --------
    >>> objective = steppe.Objective(nn.Linear(2, 1), nn.functional.mse_loss, (torch.eye(2), torch.zeros(2, 1)))
    >>> line = steppe.measures.slice_1d(objective, objective.weights, points=3)
    >>> steppe.measures.figure(line).layout.title.text
    'Loss on a line through the weights'

    """
    if isinstance(drawn, Density):
        return spectrum(drawn)
    fig = _drawn(drawn, [], view, log)
    lines = wrap(caption(drawn), CAPTION)
    fig.add_annotation(
        text="<br>".join(lines), xref="paper", yref="paper", x=0, y=0, xanchor="left", yanchor="top", yshift=-72,
        showarrow=False, align="left", font={"size": 13, "color": GREY},
    )  # fmt: skip
    panels = len(drawn) if isinstance(drawn, Sequence) else 1
    fig.update_layout(
        template="plotly_white", width=960 if panels == 1 else 200 + 480 * panels, height=710 + 18 * len(lines),
        margin={"l": 90, "r": 40, "t": 100, "b": 85 + 18 * len(lines)},
    )  # fmt: skip
    return fig


def write_html(
    drawn: Slice | Path | Sequence[Slice],
    path: str | os.PathLike[str],
    view: View = "contour",
    *,
    log: bool = False,
    names: Sequence[str] = (),
) -> None:
    """Write a figure as a self-contained HTML page, atomically.

    Parameters
    ----------
    drawn, view, log
        As in `figure`.
    path
        The file to write.
    names
        The runs, for the title and the panels: one per slice, or the two ends of a path.

    Examples
    --------
    >>> import os, tempfile
    >>> objective = steppe.Objective(nn.Linear(2, 1), nn.functional.mse_loss, (torch.eye(2), torch.zeros(2, 1)))
    >>> line = steppe.measures.slice_1d(objective, objective.weights, points=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     steppe.measures.write_html(line, os.path.join(folder, "line.html"))
    ...     os.listdir(folder)
    ['line.html']

    """
    fig = _drawn(drawn, names, view, log)
    title = fig.layout.title.text
    fig.layout.title = None
    write_figure_page(fig.to_plotly_json(), path, title, caption(drawn, names))


def caption(drawn: Slice | Path | Sequence[Slice], names: Sequence[str] = ()) -> str:
    """A description of what `write_html` draws: radius and rise, points, cost, directions, and what is missing."""
    slices = _slices(drawn)
    labels = names if len(names) == len(slices) else [f"panel {i}" for i in range(1, len(slices) + 1)]
    if len(slices) == 1:
        return "; ".join([*_radius(slices, labels), *_about(slices[0], drawn)]) + "."
    each = [f"{label}: {'; '.join(_about(one, one))}" for label, one in zip(labels, slices, strict=True)]
    return ".\n".join(["; ".join([*_radius(slices, labels), "one scale for all"]), *each]) + "."


def _radius(slices: Sequence[Slice], labels: Sequence[str]) -> list[str]:
    """The stated radius, and the rise that it was chosen for."""
    notes = slices[0].notes
    if "rise" not in notes:
        return []
    own = [grid.notes["own_radius"] for grid in slices]
    sharpest = min(range(len(own)), key=lambda i: own[i] if own[i] is not None else np.inf)
    who = labels[sharpest] if len(slices) > 1 else "the loss"
    parts = [f"radius {notes['radius']:.3g}: {who} rises by {notes['rise']:g} at the end of an axis"]
    for i, reached in enumerate(own):
        if i != sharpest:
            where = f"at {reached:.3g}" if reached is not None else "nowhere"
            parts.append(f"{labels[i]} rises by as much {where}")
    return parts


def _about(grid: Slice, drawn: Slice | Path | Sequence[Slice]) -> list[str]:
    parts = []
    if not isinstance(drawn, Path):
        at_weights = grid.centre is not None and np.isfinite(grid.losses[grid.centre])
        what = "loss at the weights" if at_weights else "rise above the lowest loss of the grid,"
        parts.append(f"{what} {grid.baseline:.4g}")
    parts.append(" by ".join(str(n) for n in grid.losses.shape) + f" points, {grid.cost}")
    letters = "t" if isinstance(drawn, Path) else "xy"
    for letter, name, length in zip(letters, grid.names, grid.lengths, strict=False):
        way = name if name.startswith("towards") else f"along {name}"
        parts.append(f"{letter} = 1 is a distance of {length:.4g} {way}")
    if grid.cosine is not None:
        parts.append(f"cosine between the two {grid.cosine:.3f}")
    if isinstance(drawn, Path):
        parts.append(f"floating-point buffers {'kept' if drawn.buffers == 'own' else drawn.buffers}")
        parts += [f"{len(drawn.kept)} tensors that differ kept, such as {drawn.kept[0]}"] if drawn.kept else []
    parts += [f"{grid.nonfinite} losses infinite or not a number"] if grid.nonfinite else []
    parts += [] if grid.complete else [f"stopped early, after {int(grid.filled.sum())} points"]
    return parts


def _slices(drawn: Slice | Path | Sequence[Slice]) -> list[Slice]:
    return [drawn.along] if isinstance(drawn, Path) else [drawn] if isinstance(drawn, Slice) else list(drawn)


def _drawn(drawn: Slice | Path | Sequence[Slice], names: Sequence[str], view: View, log: bool) -> Any:
    with explained():
        import plotly.graph_objects  # noqa: F401
        from plotly.subplots import make_subplots
    if view not in ("contour", "surface"):
        raise ValueError(f'a plane is drawn as "contour" or "surface", not as {view!r}')
    slices = _slices(drawn)
    if not slices or any(grid.lowest is None for grid in slices):
        raise ValueError("no point of the grid has a finite loss: there is nothing to draw")
    if len({len(grid.axes) for grid in slices}) > 1:
        raise ValueError("lines and planes cannot be compared: give slices of one kind")
    plane = len(slices[0].axes) == 2
    panels = len(slices) if plane else 1
    kind = "scene" if plane and view == "surface" else "xy"
    titles = [shorten(name, 60, placeholder=" ...") for name in names[:panels]] if panels > 1 else []
    fig = make_subplots(1, panels, specs=[[{"type": kind}] * panels], horizontal_spacing=GAP, subplot_titles=titles)
    for k, title in enumerate(fig.layout.annotations):  # each stays above its panel, where pages stack these too
        n = k + 1 if k else ""
        title.update(
            {"name": f"scene {k}"} if kind == "scene" else {"xref": f"x{n} domain", "yref": f"y{n} domain", "x": 0.5}
        )
    fig.update_layout(font={"size": 15}, legend={"orientation": "h", "x": 0, "y": 1.06, "yanchor": "bottom"})
    fig.update_xaxes(ticks="outside").update_yaxes(ticks="outside")
    if isinstance(drawn, Path):
        _path(fig, drawn, names)
        return fig
    where = f" around {_and(names)}" if names else " through the weights"
    scale = _Scale(slices, log)
    if not plane:
        fig.update_layout(title=f"Loss on a line{where}")
        _lines(fig, slices, names, scale)
        return fig
    draw, title = (_surfaces, "Loss over a plane") if view == "surface" else (_contours, "Loss in a plane")
    fig.update_layout(title=title + where, coloraxis=scale.coloraxis)
    draw(fig, slices, scale)
    return fig


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


class _Scale:
    """One scale for the rises of all slices: linear, or logarithmic over some decades below the largest."""

    def __init__(self, slices: Sequence[Slice], log: bool):
        rises = np.concatenate([_finite(grid.excess).ravel() for grid in slices])
        low, high = float(np.nanmin(rises)), float(np.nanmax(rises))
        self.log = log and high > 0
        self.low, self.high = (high * 10.0**-DECADES if self.log else low), high
        self.marks = levels(self.low, self.high)
        self.middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        self.words = "rise of the loss, log scale" if self.log else "rise of the loss"

    def rises(self, grid: Slice) -> Array:
        """The rises; on a logarithmic scale those below its end are at its end."""
        rises = _finite(grid.excess)
        return np.maximum(rises, self.low) if self.log else rises

    def colours(self, grid: Slice) -> Array:
        rises = self.rises(grid)
        return np.log10(rises) if self.log else rises

    @property
    def coloraxis(self) -> dict[str, Any]:
        low, high, *places = (log10(v) if self.log else v for v in (self.low, self.high, *self.marks))
        title = {"text": "rise of<br>the loss"}
        bar = {"title": title, "tickvals": places, "ticktext": texts(self.marks)[0], "thickness": 16}
        return {"cmin": low, "cmax": high, "colorscale": SCALE, "colorbar": bar}

    @property
    def axis(self) -> dict[str, Any]:
        return {"type": "log", "tickvals": self.marks, "ticktext": texts(self.marks)[0]} if self.log else {}


def _lines(fig: Any, slices: Sequence[Slice], names: Sequence[str], scale: _Scale) -> None:
    """All lines in one panel."""
    for k, grid in enumerate(slices):
        x, name = grid.axes[0], names[k] if k < len(names) else f"line {k + 1}"
        several = len(slices) > 1
        style = {"line": {"color": LINES[k % 4], "width": 2.5}, "marker": {"size": 6}}
        fig.add_scatter(
            x=x, y=scale.rises(grid), customdata=_finite(grid.losses), mode="lines+markers", name=name,
            showlegend=several, **style, hovertemplate=f"x = %{{x:.4g}}<br>rise %{{y:.5g}}<br>{LOSS}<extra></extra>",
        )  # fmt: skip
        if not several:
            _mark(fig, grid, scale.rises(grid), {})
        for j, at in enumerate(x[grid.filled & ~np.isfinite(grid.losses)]):
            line = {"color": VERMILLION, "dash": "dot", "width": 1}
            fig.add_vline(x=at, line=line, name=BROKEN, showlegend=j == 0)
    fig.update_xaxes(title=_axis(slices, 0))
    fig.update_yaxes(title=scale.words, **scale.axis)


def _path(fig: Any, drawn: Path, names: Sequence[str]) -> None:
    t, ends = drawn.t, drawn.losses[[0, -1]]
    fig.add_scatter(
        x=t, y=_finite(drawn.losses), mode="lines+markers", name="loss", line={"color": BLUE, "width": 2.5},
        marker={"size": 6}, hovertemplate="t = %{x:.4g}<br>loss %{y:.5g}<extra></extra>",
    )  # fmt: skip
    if np.isfinite(ends).all():
        style = {"line": {"color": GREY, "dash": "dash", "width": 1.5}, "hoverinfo": "skip"}
        fig.add_scatter(x=[0, 1], y=ends, mode="lines", name="line between the ends", **style)
    if np.isfinite(ends).all() and not drawn.along.nonfinite:
        height, top = drawn.barrier().value, drawn.top
        foot = (1 - top) * ends[0] + top * ends[1]
        style = {"line": {"color": VERMILLION, "width": 3}, "hoverinfo": "skip"}
        name = f"barrier {height:.4g} at t = {top:.3g}"
        fig.add_scatter(x=[top, top], y=[foot, foot + height], mode="lines", name=name, **style)
    start, end = names if len(names) == 2 else ("the model", drawn.along.names[0].removeprefix("towards "))
    between = f"Loss on the line between {_and(names)}" if names else "Loss on the line between two checkpoints"
    fig.update_layout(title=between)
    fig.update_xaxes(title=f"t: 0 is {start}, 1 is {end}")
    fig.update_yaxes(title="loss")


def _contours(fig: Any, slices: Sequence[Slice], scale: _Scale) -> None:
    """A smooth fill per panel, and one trace per level line, because plotly's own levels are equidistant."""
    for k, grid in enumerate(slices):
        place = {"row": 1, "col": k + 1}
        (x, y), z = grid.axes, scale.rises(grid).T
        numbers = np.dstack([_finite(grid.excess).T, _finite(grid.losses).T])
        fig.add_contour(
            x=x, y=y, z=scale.colours(grid).T, customdata=numbers,
            coloraxis="coloraxis", line={"width": 0}, contours={"coloring": "heatmap"}, **place,
            hovertemplate="x = %{x:.4g}<br>y = %{y:.4g}<br>rise %{customdata[0]:.5g}<br>loss %{customdata[1]:.5g}"
            "<extra></extra>",
        )  # fmt: skip
        for level in filter(None, scale.marks):  # a line at 0 would go through the weights
            ink = "black" if level > scale.middle else "white"
            fig.add_contour(
                x=x, y=y, z=z, hoverinfo="skip", showscale=False, line={"color": ink, "width": 1}, showlegend=False,
                contours={"coloring": "none", "start": level, "end": level, "size": 1, "showlabels": True,
                          "labelfont": {"size": 13, "color": ink}, "labelformat": f".{texts(scale.marks)[1]}~g"},
                **place,
            )  # fmt: skip
        bad = np.argwhere(grid.filled & ~np.isfinite(grid.losses))
        if len(bad):
            fig.add_scatter(
                x=x[bad[:, 0]], y=y[bad[:, 1]], mode="markers", name=BROKEN, cliponaxis=False, **place,
                marker={"symbol": "x-thin", "size": 9, "line": {"color": VERMILLION, "width": 2}},
            )  # fmt: skip
        _mark(fig, grid, None, place, legend=len(slices) == 1)
        fig.update_xaxes(title=_axis([grid], 0), range=[x.min(), x.max()], zeroline=False, constrain="domain", **place)
        fig.update_yaxes(  # equal units on both axes: a circle is a circle
            title=_axis([grid], 1), range=[y.min(), y.max()], zeroline=False, constrain="domain",
            constraintoward="top", scaleanchor=f"x{k + 1 if k else ''}", **place,
        )  # fmt: skip


def _surfaces(fig: Any, slices: Sequence[Slice], scale: _Scale) -> None:
    for k, grid in enumerate(slices):
        x, y = grid.axes
        fig.add_surface(
            x=x, y=y, z=scale.rises(grid).T, surfacecolor=scale.colours(grid).T, coloraxis="coloraxis",
            customdata=_finite(grid.losses).T, row=1, col=k + 1,
            hovertemplate=f"x = %{{x:.4g}}<br>y = %{{y:.4g}}<br>rise %{{z:.5g}}<br>{LOSS}<extra></extra>",
        )  # fmt: skip
    ends = [log10(scale.low), log10(scale.high)] if scale.log else [scale.low, scale.high]
    fig.update_scenes(
        xaxis={"title": {"text": "x"}}, yaxis={"title": {"text": "y"}}, aspectmode="cube",
        zaxis={"title": {"text": "rise of the loss"}, **scale.axis, "range": ends},
        camera={"eye": {"x": 1.3, "y": -1.5, "z": 0.85}, "center": {"x": 0, "y": 0, "z": -0.2}},
    )  # fmt: skip


def _mark(fig: Any, grid: Slice, heights: Array | None, place: dict[str, Any], legend: bool = True) -> None:
    """Mark the weights, and the lowest point if its loss is lower; `heights` are those of a line."""
    lowest = np.inf
    for name, index, symbol, colour in (
        ("the weights", grid.centre, "circle", "white"),
        ("lowest point of the grid", grid.lowest, "star", ORANGE),
    ):
        if index is not None and grid.losses[index] < lowest:
            lowest = grid.losses[index]
            label = f"{name} (loss {lowest:.6g})"
            y = grid.axes[1][index[1]] if heights is None else heights[index]
            fig.add_scatter(
                x=[grid.axes[0][index[0]]], y=[y], mode="markers", name=label, cliponaxis=False, showlegend=legend,
                hovertemplate=f"{label}<extra></extra>", **place,
                marker={"symbol": symbol, "size": 13, "color": colour, "line": {"color": "black", "width": 1}},
            )  # fmt: skip


def _axis(slices: Sequence[Slice], k: int) -> str:
    """The name of an axis; the direction if all slices share it."""
    directions = {grid.names[k] for grid in slices}
    name = directions.pop() if len(directions) == 1 else "the first direction of each"
    return f"{'xy'[k]}: {shorten(name, 60, placeholder=' ...')}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if len(names) > 1 else names[0]


def _finite(losses: Array) -> Array:
    return np.where(np.isfinite(losses), losses, np.nan)
