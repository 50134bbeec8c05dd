"""Pictures of several panels in a row, as the plain dictionaries that plotly reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours: told apart by people with any colour vision, and in grey
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#5F6368"


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title, what its axes are, and traces as plotly takes them."""

    title: str
    x: str
    y: str
    traces: Sequence[dict[str, Any]]
    log: str = ""  # the axes with a logarithmic scale: "x", "y" or "xy"
    across: Sequence[tuple[float, str]] = ()  # levels marked by a line, each with its words
    range_y: tuple[float, float] | None = None


def line(name: str, x: Any, y: Any, colour: str, **more: Any) -> dict[str, Any]:
    """A line through points."""
    style = {"color": colour, "width": 2.2, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "name": name, "x": _list(x), "y": _list(y), "line": style, **more}


def dots(name: str, x: Any, y: Any, colour: Any, **more: Any) -> dict[str, Any]:
    """Points."""
    marker = {"color": colour, "size": 7, **more.pop("marker", {})}
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": _list(x), "y": _list(y), "marker": marker, **more
    }  # fmt: skip


def picture(title: str, caption: str, *row: Panel, height: int = 430) -> dict[str, Any]:
    """A figure with its panels side by side; its title and its caption, in `meta`, are text of the page."""
    width, gap = 90 + 430 * len(row) if len(row) > 1 else 860, 0.22 / len(row)
    layout: dict[str, Any] = {
        "template": "plotly_white", "width": width, "height": height + 160, "font": {"size": 14},
        "title": {"text": title, "font": {"size": 18}, "x": 0.02}, "meta": {"caption": caption},
        "margin": {"l": 80, "r": 30, "t": 130, "b": 80},
        "legend": {"orientation": "h", "x": 0, "y": 1.1, "yanchor": "bottom"}, "annotations": [], "shapes": [],
    }  # fmt: skip
    traces: list[dict[str, Any]] = []
    share = (1 - gap * (len(row) - 1)) / len(row)
    for i, panel in enumerate(row):
        n = "" if i == 0 else str(i + 1)
        left = i * (share + gap)
        layout[f"xaxis{n}"] = _axis(panel.x, "x" in panel.log) | {"domain": [left, left + share], "anchor": f"y{n}"}
        layout[f"yaxis{n}"] = _axis(panel.y, "y" in panel.log) | {"domain": [0, 1], "anchor": f"x{n}"}
        if panel.range_y is not None:
            layout[f"yaxis{n}"]["range"] = list(panel.range_y)
        layout["annotations"].append({
            "text": panel.title, "xref": f"x{n} domain", "yref": f"y{n} domain", "x": 0, "y": 1, "xanchor": "left",
            "yanchor": "bottom", "yshift": 6, "showarrow": False, "font": {"size": 14},
        })  # fmt: skip
        for level, words_at in panel.across:
            style = {"color": GREY, "width": 1.2, "dash": "dot"}
            at = {"xref": f"x{n} domain", "yref": f"y{n}"}
            layout["shapes"].append({"type": "line", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": style, **at})
            layout["annotations"].append({
                "text": words_at, "x": 1, "y": _place(level, "y" in panel.log), "xanchor": "right", "yanchor": "bottom",
                "showarrow": False, "font": {"size": 12, "color": GREY}, **at,
            })  # fmt: skip
        named = {t["name"] for t in traces}
        for trace in panel.traces:
            once = trace["name"] not in named and trace.get("showlegend", True)
            traces.append(
                {**trace, "xaxis": f"x{n}", "yaxis": f"y{n}", "legendgroup": trace["name"], "showlegend": once}
            )
            named.add(trace["name"])
    return {"data": traces, "layout": layout}


def _axis(title: str, logarithmic: bool) -> dict[str, Any]:
    # plotly sets powers of ten larger than other numbers
    scale = {"type": "log", "exponentformat": "power", "dtick": 1, "tickfont": {"size": 12}} if logarithmic else {}
    return {"title": {"text": title, "standoff": 8}, "ticks": "outside", "zeroline": False, **scale}


def _place(level: float, logarithmic: bool) -> float:
    from math import log10

    return log10(level) if logarithmic else level  # plotly places words, unlike lines, by the exponent


def _list(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else list(values)
