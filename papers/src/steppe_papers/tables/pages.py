"""A recipe's tables as files: CSV, Markdown, and a page with figures of the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

from steppe.extend import IN_TURN, atomic_write, csv_text, figure_page
from steppe.studies.compared import Compared, lines, remarks

TABLE, MARKDOWN, PAGE = "table.csv", "table.md", "reproduce.html"


def markdown(title: str, tables: Sequence[Compared], words: Sequence[str]) -> str:
    """The tables as Markdown; the same text for the same records."""
    parts = [f"# {title}", ""]
    for table in tables:
        heads, rows = lines(table)
        parts += [f"## {table.name}", "", _md(heads), _md(["---"] * len(heads)), *map(_md, rows), ""]
        parts += [" ".join(remarks(table)), ""]
    return "\n".join([*parts, *(f"- {word}" for word in words), ""])


def write_files(folder: Path, title: str, tables: Sequence[Compared], words: Sequence[str], notes: str) -> list[Path]:
    """Write table.csv, table.md and the page into a folder."""
    records = [row for table in tables for row in table.records()]
    columns = list(dict.fromkeys(name for row in records for name in row))
    contents: dict[str, Callable[[], str]] = {
        TABLE: lambda: csv_text(columns, records),
        MARKDOWN: lambda: markdown(title, tables, words),
        PAGE: lambda: page(title, tables, words, notes),  # last: it needs plotly, and the tables do not
    }
    for name, text in contents.items():
        content = text().encode()
        with atomic_write(folder / name) as file:
            file.write(content)
    return [folder / name for name in contents]


def page(title: str, tables: Sequence[Compared], words: Sequence[str], notes: str) -> str:
    """The page: tables, figures of the same numbers, and the recipe's notes; it sends no requests."""
    shown = [{"name": t.name, "lines": lines(t), "remarks": remarks(t)} for t in tables]
    template = (files(__package__) / "page.html").read_text(encoding="utf-8")
    caption = "Means with 95 % intervals; open marks are the numbers of the paper."
    return figure_page(figure(tables), title, caption, template, tables=shown, words=words, notes=notes)


def figure(tables: Sequence[Compared]) -> dict[str, Any]:
    """One panel per table, with 95 % intervals; the paper's numbers are open marks.

    Columns that are numbers are the horizontal axis, and rows are colours. Otherwise rows are the axis, so that points
    do not overlap, and columns are colours.
    """
    drawn = [t for t in tables if t.ours.entries]
    n = max(1, len(drawn))
    gap = 0.12 if n > 1 else 0.0
    height = (1 - gap * (n - 1)) / n
    layout: dict[str, Any] = {"height": 120 + 380 * n, "showlegend": True}
    colours: dict[str, str] = {}
    data: list[dict[str, Any]] = []
    for k, table in enumerate(drawn):
        end = "" if k == 0 else str(k + 1)
        top = 1 - k * (height + gap)
        spec = table.ours.spec
        title = spec.x or " ".join(spec.columns if _is_numeric(table) else spec.rows)
        layout[f"xaxis{end}"] = {"domain": [0, 1], "anchor": f"y{end}", "title": {"text": title}, **_axis(table)}
        layout[f"yaxis{end}"] = {"domain": [max(0, top - height), top], "anchor": f"x{end}"}
        layout[f"yaxis{end}"]["title"] = {"text": table.name}
        for trace in _traces(table):
            group = trace["legendgroup"]
            known = any(group == other["legendgroup"] for other in data)
            colour = colours.setdefault(group, IN_TURN[len(colours) % len(IN_TURN)])
            marker = {"color": colour, **trace.pop("marker", {})}
            trace |= {"marker": marker, "line": {"color": colour, **trace.pop("line", {})}}
            data.append({**trace, "xaxis": f"x{end}", "yaxis": f"y{end}", "showlegend": not known})
    return {"data": data, "layout": layout}


def _is_numeric(table: Compared) -> bool:
    return all(map(_is_number, table.ours.columns))


def _axis(table: Compared) -> dict[str, Any]:
    """The horizontal axis: numbers over two decades or more, such as learning rates, by their logarithm; not epochs."""
    if table.ours.spec.x or "epoch" in table.ours.spec.columns:
        return {"type": "-"}
    if not _is_numeric(table):
        return {"type": "category"}
    low, high = (pick(map(float, table.ours.columns)) for pick in (min, max))
    return {"type": "log", "dtick": 1, "exponentformat": "power"} if 0 < 100 * low <= high else {"type": "-"}


def _traces(table: Compared) -> Iterator[dict[str, Any]]:
    """The points of a panel, each with the paper's beside it."""
    ours = table.ours
    if ours.spec.x:
        for row, points in ours.points.items():
            x, y = zip(*points, strict=True)
            yield {"legendgroup": row, "name": row, "mode": "markers", "x": x, "y": y}
        return
    numeric = _is_numeric(table)
    mode = "lines+markers" if ours.spec.draw == "lines" else "markers"
    for label in ours.rows if numeric else ours.columns:
        cells = [(label, c) for c in ours.columns] if numeric else [(r, label) for r in ours.rows]
        at = {cell: float(cell[1]) if numeric else cell[0] for cell in cells}
        entries = [e for cell in cells if (e := ours.entry(*cell)) is not None]
        above = [e.high - e.value if isfinite(e.high) else 0 for e in entries]
        below = [e.value - e.low if isfinite(e.low) else 0 for e in entries]
        yield {
            "legendgroup": label, "name": label, "mode": mode, "x": [at[e.row, e.column] for e in entries],
            "y": [e.value for e in entries],
            "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below},
        }  # fmt: skip
        theirs = {cell: table.paper[cell].value for cell in cells if cell in table.paper}
        if theirs:
            yield {
                "legendgroup": f"{label}, paper", "name": f"{label}, paper", "mode": mode,
                "x": [at[cell] for cell in theirs], "y": list(theirs.values()),
                "marker": {"symbol": "diamond-open", "size": 11}, "line": {"dash": "dot"},
            }  # fmt: skip


def _md(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
