"""Settings and results of a study: numbers, a figure and sentences, and how they are saved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from .._util.extras import explained
from .._util.files import atomic_write
from .._util.formats import json_safe
from .._util.names import unknown
from .._util.pages import figure_page

SUFFIXES = (".html", ".json")
RUN = "run"  # in the file of numbers: settings and day
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Settings:
    """Settings of every study.

    Parameters
    ----------
    seed
        Seed of all random numbers.
    quick
        Use smaller sizes.
    sizes
        Sizes of the study by name; they override the default and the quick ones.
    tick
        Called with the number of points done and their total.

    Examples
    --------
    >>> settings = steppe.theory.Settings(quick=True, sizes={"columns": 10})
    >>> sizes = settings.of(steppe.theory.Protocol(), matrices=5)  # 5 matrices in quick studies
    >>> sizes.matrices, sizes.columns, sizes.rows
    (5, 10, 3000)

    """

    seed: int = 0
    quick: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tick: Callable[[int, int], object] = lambda done, total: None

    def of(self, default: Sizes, **quick: Any) -> Sizes:
        """The sizes of a study, a dataclass: the defaults, overridden by the quick ones and by `sizes`."""
        defaults = {f.name: getattr(default, f.name) for f in fields(default)}  # type: ignore[arg-type]
        for name, value in self.sizes.items():
            if name not in defaults:
                raise ValueError(unknown("size of this study", name, defaults))
            if not _fits(value, defaults[name]):
                raise ValueError(f"the size {name} is a value such as {defaults[name]!r}, not {value!r}")
        return replace(default, **{**(quick if self.quick else {}), **self.sizes})  # type: ignore[type-var]


@dataclass(frozen=True)
class Result:
    """The result of a study.

    Parameters
    ----------
    data
        The numbers, by name.
    figure
        The figure, as a dictionary for plotly.
    words
        The findings, as sentences.

    Examples
    --------
    >>> result = steppe.theory.Result({"ratio": torch.tensor([1.0, float("inf")]).numpy()}, {}, ["It diverges."])
    >>> result.plain()
    {'ratio': [1.0, None]}

    """

    data: Mapping[str, Any]
    figure: Any
    words: Sequence[str]

    def plain(self) -> dict[str, Any]:
        """The numbers as JSON values: arrays as lists, non-finite numbers as null."""
        values: dict[str, Any] = json_safe(self.data)
        return values


def save(result: Result, name: str, out: str | os.PathLike[str], settings: Settings | None = None) -> list[Path]:
    """Writes the numbers (.json) and a page with the figure (.html), and returns their paths.

    Parameters
    ----------
    result, name
        The result, and the name of the study.
    out
        A folder, or a file that ends in .html or .json; the other file then has the same stem.
    settings
        The settings of the result, recorded with the day.

    Examples
    --------
    >>> import tempfile
    >>> result = steppe.theory.Result({"ratio": 1.0}, {}, ["The ratio is 1."])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in steppe.theory.save(result, "mine", folder)]
    ['mine.html', 'mine.json']

    """
    path = check_path(out)
    stem = path.with_suffix("") if path.suffix in SUFFIXES and not path.is_dir() else path / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    page, numbers = (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
    _write(page, _page(result, name))
    content: dict[str, Any] = {"name": name, "words": list(result.words)}
    if settings is not None:
        content[RUN] = {"seed": settings.seed, "quick": settings.quick, "sizes": json_safe(dict(settings.sizes))}
        content[RUN]["date"] = datetime.now(UTC).date().isoformat()
    _write(numbers, json.dumps(content | result.plain(), indent=1, allow_nan=False))
    return [page, numbers]


def check_path(out: str | os.PathLike[str]) -> Path:
    """The path of a folder, or of a file that ends in .html or .json; raises ValueError for any other."""
    path = Path(out)
    if path.suffix not in ("", *SUFFIXES) and not path.is_dir():
        raise ValueError(f"a study is written to a folder, or to a file ending in .html or .json, not to {str(out)!r}")
    return path


def _page(result: Result, name: str) -> str:
    with explained():
        import plotly.graph_objects as go
    figure = go.Figure(result.figure).to_plotly_json()
    layout = figure["layout"]
    title, caption = layout.pop("title", {}).get("text", ""), (layout.get("meta") or {}).get("caption", "")
    seed = f" Seed {result.data['seed']}." if "seed" in result.data else ""
    return figure_page(figure, f"{name}: {title}" if title else name, (caption or " ".join(result.words)) + seed)


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def _fits(value: Any, default: Any) -> bool:
    """Whether a value has the type of the default; an int also counts as a float."""
    if isinstance(default, bool) or default is None:
        return isinstance(value, bool) or default is None
    if isinstance(default, (tuple, list)):
        return isinstance(value, (tuple, list)) and all(_fits(v, default[0]) for v in value) and len(value) > 0
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, type(default)) and not isinstance(value, bool)
