"""The page of a comparison: one HTML file with its answers, figures and tables, which requests nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import write_text
from .._util.pages import IN_TURN, figure_page
from .sentences import known, named, table_of

if TYPE_CHECKING:
    from .result import Result

CAPTION = (
    "Difference in test error: left of 0 is better. Thin lines are intervals that hold at every look. Differences in "
    "the grey band are not worth a change; a thick line inside it means no difference. Tuning: the test error of the "
    "run that validation selects among so many trials, with 95 % intervals. Best run: its validation error in training."
)
EXPONENT = re.compile(r"(\de)-(?=\d)")  # whose minus sign is no place to break a line
HEADS = ("Difference in test error", "Tuning", "Best run")
MARKS = {"better": "\u2713", "worse": "\u2717", "no difference": "="}  # others: "?"
TEMPLATE = """{% extends "figure.html" %}
{% block head %}{% if reload %}<meta http-equiv="refresh" content="{{ reload }}">
{% endif %}{% endblock %}{% block style %}
.answer { font-size: 1.15rem; margin: 0 0 .6rem; } .soft { color: var(--soft); }
.verdicts { background: var(--card); border-radius: 12px; padding: .3rem 1rem; margin: 1rem 0; list-style: none; }
.verdicts li { display: flex; flex-wrap: wrap; gap: 0 1.5rem; padding: .4rem 0; }
.verdicts li + li { border-top: 1px solid var(--line); }
.verdicts li > :first-child { font-weight: 600; min-width: 8rem; }
.verdicts .better { color: #00875f; } .verdicts .worse { color: #c05a00; }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; margin: 1rem 0; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .95rem; }
td, th { padding: .25rem .7rem; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; white-space: pre; position: sticky; left: 0; }
td:first-child, th:first-child { background: var(--paper); }
th { border-bottom: 1px solid var(--line); }
@media (max-width: 40rem) { td, th { padding: .2rem .3rem; font-size: .8rem; white-space: normal; }
  td:first-child { min-width: 6.5rem; white-space: pre-wrap; } }
@media print { pre { white-space: pre-wrap; } table { font-size: .7rem; } td, th { padding: .05rem .4rem; } }
pre { background: var(--card); border-radius: 12px; padding: 1rem; overflow-x: auto; } .wide { overflow-x: auto; }
{% endblock %}
{% block before %}{% if best %}<p class="answer"><strong>{{ best }}</strong></p>
{% endif %}{% if verdicts %}<ul class="verdicts">{% for one in verdicts %}<li><span>{{ one.method }}</span>
<span class="{{ one.verdict }}">{{ one.mark }} {{ one.verdict }}</span><span>{{ one.numbers }}</span></li>
{% endfor %}</ul>
{% endif %}{% for text in answers %}<p class="{{ 'soft' if verdicts else 'answer' }}">{{ text }}</p>
{% endfor %}{% endblock %}
{% block after %}<div class="wide"><table><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr>
{% for row in cells %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% for text in caveats %}<p class="soft">{{ text }}</p>
{% endfor %}{% if yaml %}<details><summary>The recommended settings, for steppe train and for Python</summary>
<pre>{{ yaml }}</pre><pre>{{ python }}</pre></details>{% endif %}{% endblock %}"""


def write(result: Result, path: Path, reload: int = 0) -> Path:
    """Write the page of a result atomically; a browser reloads it after so many seconds, if any."""
    n = len(result.contrasts)
    heads, cells = table_of(result)
    answers = result.sentences[: len(result.sentences) - len(result.caveats)] if n else result.sentences[:1]
    best = answers.pop() if n and result.recommended is not None else ""  # it is the last one
    verdicts = [
        {
            "method": a.method,
            "verdict": a.verdict,
            "mark": MARKS.get(a.verdict, "?"),
            "numbers": f"{known(a)} of test error",
        }
        for a in result.contrasts
    ]
    text = figure_page(
        figure_of(result),
        f"{' or '.join(result.methods[1:])} instead of {named(result.methods[0])}?",
        CAPTION,
        TEMPLATE,
        best=best,
        verdicts=verdicts,
        answers=answers,
        caveats=[EXPONENT.sub("\\1\u2011", text) for text in result.caveats],
        heads=heads,
        cells=cells,
        yaml=result.yaml,
        python=result.python,
        reload=reload,
    )
    write_text(path, text)
    return path


def figure_of(result: Result) -> dict[str, Any]:
    """Return the differences, the tuning curves and the learning curves, as plotly takes them."""
    data: list[dict[str, Any]] = []
    colours = {m: IN_TURN[k % len(IN_TURN)] for k, m in enumerate(result.methods)}
    for a in result.contrasts:
        ends = [x - a.difference if isfinite(x) else 0.0 for x in (a.low, a.high)]
        data.append({
            "type": "scatter", "mode": "markers", "x": [a.difference], "y": [a.method], "showlegend": False,
            "name": a.method, "marker": {"size": 11, "color": colours[a.method]},
            "error_x": {"type": "data", "symmetric": False, "array": [ends[1]], "arrayminus": [-ends[0]],
                        "color": colours[a.method]},
            "hovertemplate": escape(a.sentence) + "<extra></extra>", "xaxis": "x", "yaxis": "y",
        })  # fmt: skip
        data.append({
            "type": "scatter", "mode": "lines", "x": [a.inner_low, a.inner_high], "y": [a.method, a.method],
            "showlegend": False, "line": {"width": 6, "color": colours[a.method]}, "hoverinfo": "skip", "opacity": 0.6,
            "xaxis": "x", "yaxis": "y",
        })  # fmt: skip
    for row in result.rows:
        data += _curve(row.curve, colours[row.method], row.method)
        shown = [p for p in row.learning if "validation_error" in p]
        data.append({
            "type": "scatter", "mode": "lines", "x": [p["passes"] for p in shown],
            "y": [100 * p["validation_error"] for p in shown], "name": row.method, "showlegend": False, "xaxis": "x3",
            "yaxis": "y3", "legendgroup": row.method, "line": {"color": colours[row.method]},
        })  # fmt: skip
    shapes = []
    if result.contrasts:
        worth = result.contrasts[0].worth
        shapes.append({"type": "rect", "xref": "x", "yref": "y domain", "x0": -worth, "x1": worth, "y0": 0, "y1": 1,
                       "fillcolor": "rgba(128,128,128,0.18)", "line": {"width": 0}})  # fmt: skip
    axes: dict[str, Any] = {}
    heads: list[dict[str, Any]] = []
    titles = (
        (f"points, from {named(result.methods[0])}", ""),
        ("trials of tuning", "test error of the selected run, %"),
        ("passes over the training samples", "validation error, %"),
    )
    for k, ((x, y), n) in enumerate(zip(titles, ("", "2", "3"), strict=True)):
        left = k * 0.36
        axes[f"xaxis{n}"] = {"domain": [left, left + 0.28], "anchor": f"y{n}", "title": {"text": x}}
        axes[f"yaxis{n}"] = {"anchor": f"x{n}", "title": {"text": y}}
        heads.append({"xref": f"x{n} domain", "yref": f"y{n} domain", "x": 0, "y": 1, "xanchor": "left",
                      "yanchor": "bottom", "yshift": 6, "showarrow": False, "text": f"<b>{HEADS[k]}</b>"})  # fmt: skip
    axes["yaxis2"]["rangemode"] = "nonnegative"
    axes["xaxis"]["zeroline"] = True
    axes["yaxis"]["range"] = [len(result.contrasts) - 0.2, -0.8]  # the first contender is at the top
    return {
        "data": data,
        "layout": {
            **axes,
            "shapes": shapes,
            "annotations": heads,
            "legend": {"orientation": "h", "y": 1, "yref": "container", "yanchor": "top"},
        },
    }


def _curve(points: Sequence[tuple[int, float, float, float]], colour: str, name: str) -> list[dict[str, Any]]:
    axes = {"type": "scatter", "xaxis": "x2", "yaxis": "y2", "legendgroup": name, "name": name}
    x, y, low, high = (list(column) for column in zip(*points, strict=True))
    band = {"x": [*x, *x[::-1]], "y": [*high, *low[::-1]], "fill": "toself", "line": {"width": 0}, "opacity": 0.2}
    return [
        axes | band | {"fillcolor": colour, "mode": "lines", "showlegend": False, "hoverinfo": "skip"},
        axes | {"x": x, "y": y, "mode": "lines+markers", "line": {"color": colour}},
    ]
