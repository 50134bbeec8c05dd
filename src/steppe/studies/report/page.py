"""The page: one HTML file that contains its style, program, data and plotly, and requests nothing."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from ... import __version__
from ..._util.files import atomic_write
from ..statistics.findings import Findings
from ..store import Store
from .contents import Content, content

SCRIPTS = (
    "words", "statistics", "state", "filter", "link", "theme", "charts", "overview", "runs", "one_run", "compare",
    "scatter", "parallel", "importance", "heat", "curves", "shapes", "making", "live", "page",
)  # fmt: skip
"""Concatenated in this order."""


def write(store: Path, out: Path, results: Findings | None = None) -> Path:
    """Write the report of a study atomically.

    Parameters
    ----------
    store : Path
        The study's SQLite file.
    out : Path
        The HTML file.
    results : Findings, optional
        The study's findings, if they are already computed.

    Returns
    -------
    Path
        `out`.

    """
    with Store.reading(store) as opened:
        text = html(content(opened, results))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        file.write(text.encode())
    return out


def html(made: Content) -> str:
    """Render the page of a `content`."""
    from jinja2 import Environment
    from markupsafe import Markup

    script = program()
    source, packed = _plotly()
    values: dict[str, Any] = {
        "title": made["title"],
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "policy": policy([script, source], live=bool(made.get("live"))),
        "style": Markup(_text("page.css")),
        "script": Markup(script),
        "data": Markup(embedded(made)),
        "plotly": Markup(packed),
    }
    return Environment(autoescape=True).from_string(_text("page.html")).render(values)


def embedded(made: Content) -> str:
    """JSON without markup and line separators: it cannot end a script element early, and JavaScript reads it alike."""
    text = json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(scripts: list[str], *, live: bool) -> str:
    """The Content-Security-Policy: only these scripts run, and only a live page may send requests, to its own server.

    Plotly sets styles on elements, so styles cannot be listed one by one.
    """
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    parts = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:"]
    parts += ["base-uri 'none'", "form-action 'none'", *(["connect-src 'self'"] if live else [])]
    return "; ".join(parts)


@cache
def program() -> str:
    """All scripts in one function scope."""
    return '(() => {\n"use strict";\n' + "\n".join(_text(f"{name}.js") for name in SCRIPTS) + "})();"


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's JavaScript from its Python package, and the same compressed, as text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("the report draws its charts with plotly: pip install plotly") from error
    source: str = get_plotlyjs()
    return source, b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


def _text(name: str) -> str:
    return (files(__package__) / "browser" / name).read_text(encoding="utf-8")
