"""What a study of theory takes and gives: settings in, numbers, a picture and sentences out, written to files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from .._util.json import json_safe
from .._util.names import unknown

SUFFIXES = (".html", ".json")
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Settings:
    """What every study takes: a seed, whether to be quick, its own sizes by name, and who hears of progress."""

    seed: int = 0
    quick: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tick: Callable[[int, int], object] = lambda done, total: None

    def of(self, usual: Sizes, **quick: Any) -> Sizes:
        """A study's own sizes, a dataclass: the usual ones, the quick ones if asked for, and what was said by name."""
        known = {f.name: getattr(usual, f.name) for f in fields(usual)}  # type: ignore[arg-type]
        for name, value in self.sizes.items():
            if name not in known:
                raise ValueError(unknown("size of this study", name, known))
            if not _fits(value, known[name]):
                raise ValueError(f"the size {name} is a value such as {known[name]!r}, not {value!r}")
        return replace(usual, **{**(quick if self.quick else {}), **self.sizes})  # type: ignore[type-var]


@dataclass(frozen=True)
class Result:
    """Numbers as values of JSON, a picture as plotly takes it (a dict or a figure), and what is seen, in sentences."""

    data: Mapping[str, Any]
    figure: Any
    words: Sequence[str]

    def plain(self) -> dict[str, Any]:
        """The numbers in types that JSON has: arrays as lists, those that are not finite as null."""
        made: dict[str, Any] = json_safe(self.data)
        return made


def save(result: Result, name: str, out: str | os.PathLike[str]) -> list[Path]:
    """Writes the numbers (.json) and a page with the picture (.html) into a folder, or both named as one of the two."""
    place = check_place(out)
    stem = place.with_suffix("") if place.suffix in SUFFIXES and not place.is_dir() else place / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    page, numbers = (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
    _write(page, _page(result, name))
    _write(
        numbers, json.dumps({"name": name, "words": list(result.words), **result.plain()}, indent=1, allow_nan=False)
    )
    return [page, numbers]


def check_place(out: str | os.PathLike[str]) -> Path:
    """Where a study may be written: a folder, or a file that ends in .html or .json; raises for another."""
    place = Path(out)
    if place.suffix not in ("", *SUFFIXES) and not place.is_dir():
        raise ValueError(f"a study is written to a folder, or to a file ending in .html or .json, not to {str(out)!r}")
    return place


def _page(result: Result, name: str) -> str:
    try:
        import plotly.graph_objects as go
    except ImportError as e:
        raise ImportError("drawing needs plotly, which is not installed: pip install plotly") from e
    page: str = go.Figure(result.figure).to_html(include_plotlyjs=True, full_html=True, div_id="figure")
    return page.replace("<head>", f"<head><title>{name}</title>", 1)


def _write(path: Path, text: str) -> None:
    from .._util.files import atomic_write

    with atomic_write(path) as file:
        file.write(text.encode())


def _fits(value: Any, usual: Any) -> bool:
    """Whether a value is of the kind of the usual one; whole numbers are numbers, and one number is a list of one."""
    if isinstance(usual, bool) or usual is None:
        return isinstance(value, bool) or usual is None
    if isinstance(usual, (tuple, list)):
        return isinstance(value, (tuple, list)) and all(_fits(v, usual[0]) for v in value) and len(value) > 0
    if isinstance(usual, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, type(usual)) and not isinstance(value, bool)
