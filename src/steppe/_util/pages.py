"""HTML pages that contain all they need: data, scripts and plotly, and a policy that forbids every request; colours."""

from __future__ import annotations

import gzip
import json
import os
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from .extras import explained
from .files import replace
from .formats import json_safe

BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#5F6368"
IN_TURN = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
"""Colours of Okabe and Ito (2008), which colour-blind readers can tell apart, for series in the order of a legend."""


def write_figure_page(figure: Mapping[str, Any], path: str | os.PathLike[str], title: str, caption: str) -> None:
    """Write a plotly figure as a page for wide and narrow screens, light and dark, atomically.

    Parameters
    ----------
    figure
        `data` and `layout` as plotly takes them. Panels are pairs of axes with domains, or scenes: on a narrow screen
        they are stacked. Colours of text, axes and background are the page's.
    path
        The file to write.
    title, caption
        The heading, which names the run, and the text below the figure.

    """
    replace(Path(path), figure_page(figure, title, caption).encode())


def figure_page(figure: Mapping[str, Any], title: str, caption: str, template: str = "", **more: Any) -> str:
    """Render the page of `write_figure_page`; `template` may fill the blocks of figure.html with `more` values."""
    from jinja2 import DictLoader, Environment
    from markupsafe import Markup

    source, packed = plotly_source()
    script = (files(__package__) / "figure.js").read_text(encoding="utf-8")
    base = (files(__package__) / "figure.html").read_text(encoding="utf-8")
    values = more | {
        "title": title,
        "caption": caption,
        "policy": policy([script, source]),
        "script": Markup(script),
        "data": Markup(embedded(json_safe(figure))),
        "plotly": Markup(packed),
    }
    environment = Environment(autoescape=True, loader=DictLoader({"figure.html": base}))
    return environment.from_string(template or base).render(values)


def embedded(data: Any) -> str:
    """JSON without markup and line separators: it cannot end a script element early, and JavaScript reads it alike."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(scripts: list[str]) -> str:
    """The Content-Security-Policy: only these scripts run, and no requests are sent.

    Plotly sets styles on elements, so styles cannot be listed one by one.
    """
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    parts = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:"]
    parts += ["base-uri 'none'", "form-action 'none'"]
    return "; ".join(parts)


@cache
def plotly_source() -> tuple[str, str]:
    """Plotly's JavaScript from its Python package, and the same compressed, as text."""
    with explained():
        from plotly.offline import get_plotlyjs
    source: str = get_plotlyjs()
    return source, b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()
