"""The page itself: one HTML file with its style, its program, its data and plotly in it, and nothing from elsewhere."""

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
from ..store import Store
from .contents import Content, content

SCRIPTS = (
    "words", "statistics", "state", "theme", "charts", "overview", "runs", "one_run", "scatter", "heat", "curves",
    "shapes", "making", "live", "page",
)  # fmt: skip
"""In this order; all of them are one program."""


def write(store: Path, out: Path) -> Path:
    """Writes the report of a study's store, whole or not at all, and returns its path."""
    with Store.reading(store) as opened:
        text = html(content(opened))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        file.write(text.encode())
    return out


def html(made: Content) -> str:
    """The page with that content."""
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
    """JSON that ends no script element early and is the same as JavaScript: no markup, no line separators."""
    text = json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(scripts: list[str], *, live: bool) -> str:
    """Only these scripts run, and nothing is asked for: a live page may ask its own server.

    Plotly sets styles on elements, so those cannot be listed one by one.
    """
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts)
    parts = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:"]
    parts += ["base-uri 'none'", "form-action 'none'", *(["connect-src 'self'"] if live else [])]
    return "; ".join(parts)


@cache
def program() -> str:
    """All scripts as one, in a scope of their own."""
    return '(() => {\n"use strict";\n' + "\n".join(_text(f"{name}.js") for name in SCRIPTS) + "})();"


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's JavaScript from its own Python package, and the same compressed, as text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("the report draws its charts with plotly: pip install plotly") from error
    source: str = get_plotlyjs()
    return source, b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


def _text(name: str) -> str:
    return (files(__package__) / "browser" / name).read_text(encoding="utf-8")
