"""Figures of several panels in a row, as plain dictionaries for plotly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from steppe.extend import GREY


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    title, x, y
        The titles of the panel and of its axes.
    traces
        Plotly traces as dictionaries.
    log
        The axes with a logarithmic scale: "x", "y" or "xy".
    across
        Horizontal lines, each with its label.
    range_y
        The range of the y axis; None for plotly's own.
    powers
        The powers of ten between two ticks of a logarithmic y axis.

    """

    title: str
    x: str
    y: str
    traces: Sequence[dict[str, Any]]
    log: str = ""
    across: Sequence[tuple[float, str]] = ()
    range_y: tuple[float, float] | None = None
    powers: int = 1


def line(name: str, x: Any, y: Any, colour: str, **more: Any) -> dict[str, Any]:
    """A line through points."""
    style = {"color": colour, "width": 2.2, **more.pop("line", {})}
    return _scatter(name, x, y) | {"mode": "lines", "line": style, **more}


def dots(name: str, x: Any, y: Any, colour: Any, **more: Any) -> dict[str, Any]:
    """Points."""
    marker = {"color": colour, "size": 7, **more.pop("marker", {})}
    return _scatter(name, x, y) | {"mode": "markers", "marker": marker, **more}


def _scatter(name: str, x: Any, y: Any) -> dict[str, Any]:
    x, y = (values.tolist() if hasattr(values, "tolist") else list(values) for values in (x, y))
    return {"type": "scatter", "name": name, "x": x, "y": y}


def picture(title: str, *row: Panel) -> dict[str, Any]:
    """A figure with its panels side by side; a page shows its title as text."""
    width, gap = 90 + 430 * len(row) if len(row) > 1 else 860, 0.22 / len(row)
    layout: dict[str, Any] = {
        "template": "plotly_white", "width": width, "height": 590, "font": {"size": 14},
        "title": {"text": title, "font": {"size": 18}, "x": 0.02},
        "margin": {"l": 80, "r": 30, "t": 130, "b": 80},
        "legend": {"orientation": "h", "x": 0, "y": 1.1, "yanchor": "bottom"}, "annotations": [], "shapes": [],
    }  # fmt: skip
    traces: list[dict[str, Any]] = []
    share = (1 - gap * (len(row) - 1)) / len(row)
    for i, panel in enumerate(row):
        n = "" if i == 0 else str(i + 1)
        left = i * (share + gap)
        layout[f"xaxis{n}"] = _axis(panel.x, "x" in panel.log) | {"domain": [left, left + share], "anchor": f"y{n}"}
        layout[f"yaxis{n}"] = _axis(panel.y, "y" in panel.log, panel.powers) | {"domain": [0, 1], "anchor": f"x{n}"}
        if panel.range_y is not None:
            layout[f"yaxis{n}"]["range"] = list(panel.range_y)
        layout["annotations"].append({
            "text": panel.title, "xref": f"x{n} domain", "yref": f"y{n} domain", "x": 0, "y": 1, "xanchor": "left",
            "yanchor": "bottom", "yshift": 6, "showarrow": False, "font": {"size": 14},
        })  # fmt: skip
        for level, label in panel.across:
            style = {"color": GREY, "width": 1.2, "dash": "dot"}
            at = {"xref": f"x{n} domain", "yref": f"y{n}"}
            layout["shapes"].append({"type": "line", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": style, **at})
            layout["annotations"].append({
                # plotly places annotations, unlike lines, by the exponent
                "text": label, "x": 1, "y": log10(level) if "y" in panel.log else level, "xanchor": "right",
                "yanchor": "bottom", "showarrow": False, "font": {"size": 12, "color": GREY}, **at,
            })  # fmt: skip
        in_legend = {t["name"] for t in traces}
        for trace in panel.traces:
            name = trace["name"]
            legend = name not in in_legend and trace.get("showlegend", True)
            traces.append({**trace, "xaxis": f"x{n}", "yaxis": f"y{n}", "legendgroup": name, "showlegend": legend})
            in_legend.add(name)
    return {"data": traces, "layout": layout}


def _axis(title: str, logarithmic: bool, powers: int = 1) -> dict[str, Any]:
    # plotly prints powers of ten in a larger font than other numbers
    scale = {"type": "log", "exponentformat": "power", "dtick": powers, "tickfont": {"size": 12}} if logarithmic else {}
    return {"title": {"text": title, "standoff": 8}, "ticks": "outside", "zeroline": False, **scale}
