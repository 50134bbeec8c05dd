"""The page: one HTML file that contains its style, program, data and plotly, and requests nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ... import __version__
from ..._util.files import atomic_write
from ..._util.pages import embedded, plotly_source, policy
from ..statistics.findings import Findings
from ..store import Store
from ..table import Table
from .contents import Content, content

SCRIPTS = (
    "words", "statistics", "state", "filter", "link", "theme", "charts", "overview", "settings", "runs", "one_run",
    "compare", "scatter", "parallel", "heat", "curves", "shapes", "making", "live", "page",
)  # fmt: skip
"""Concatenated in this order."""


def write(
    store: Path, out: Path, results: Findings | None = None, *, reload: int = 0, stored: Table | None = None
) -> Path:
    """Write the report of a study atomically.

    Parameters
    ----------
    store : Path
        The study's SQLite file.
    out : Path
        The HTML file.
    results : Findings, optional
        The study's findings, if they are already computed.
    reload : int
        The seconds after which a browser reads the file again, while a study runs; 0 for never.
    stored : Table, optional
        The store's runs, if they are already read.

    Returns
    -------
    Path
        `out`.

    """
    with Store.reading(store, whole=results is None) as opened:  # findings are of a store that has been checked
        text = html(content(opened, results, full=not reload, stored=stored) | {"live": reload})
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        file.write(text.encode())
    return out


def html(data: Content) -> str:
    """Render the page of a `content`."""
    from jinja2 import Environment
    from markupsafe import Markup

    script = program()
    source, packed = plotly_source()
    values: dict[str, Any] = {
        "title": data["title"],
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "policy": policy([script, source]),
        "style": Markup(_text("page.css")),
        "script": Markup(script),
        "data": Markup(embedded(data)),
        "plotly": Markup(packed),
    }
    return Environment(autoescape=True).from_string(_text("page.html")).render(values)


@cache
def program() -> str:
    """All scripts in one function scope."""
    return '(() => {\n"use strict";\n' + "\n".join(_text(f"{name}.js") for name in SCRIPTS) + "})();"


def _text(name: str) -> str:
    return (files(__package__) / "browser" / name).read_text(encoding="utf-8")
