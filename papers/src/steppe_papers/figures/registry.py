"""Studies by name: each is a function from settings to a result, which has numbers, a figure and sentences."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from steppe.extend import atomic_write, figure_page, json_safe, unknown

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
    >>> settings = figures.Settings(quick=True, sizes={"columns": 10})
    >>> sizes = settings.of(figures.Protocol(), matrices=5)  # 5 matrices in quick studies
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
    >>> result = figures.Result({"ratio": torch.tensor([1.0, float("inf")]).numpy()}, {}, ["It diverges."])
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


Study = Callable[[Settings], Result]


@dataclass(frozen=True)
class Entry:
    """A study that is imported when it is needed.

    Parameters
    ----------
    module, function
        The module of this package and its function.
    about
        One line for `steppe theory`.
    paper
        The paper.
    recipe
        Its other name in `steppe reproduce`, if it is a figure of one of the papers.

    Examples
    --------
    >>> entry = figures.NAMED["small-radius"]
    >>> entry.paper, entry.about
    ('Andriushchenko et al. 2023', 'sharpness over its limit, against the radius')

    """

    module: str
    function: str
    about: str
    paper: str
    recipe: str = ""

    def load(self) -> Study:
        """Imports the study."""
        study: Study = getattr(import_module(f".{self.module}", __package__), self.function)
        return study


SHARPBALANCE, UNIVERSAL, MODERN = "Lu et al. 2024", "Tahmasebi et al. 2024", "Andriushchenko et al. 2023"
AGNOSTIC, SA_SAM = "Nguyen et al. 2024", "Naganuma et al. 2024"

NAMED: Mapping[str, Entry] = {
    name: Entry(*place.split(":"), *about)
    for name, place, *about in (
        ("sharpbalance-figure-1b", "sharpbalance_studies:figure_1b",
         "sharpness and diversity, training on all rows or on parts", SHARPBALANCE),
        ("sharpbalance-figure-2", "sharpbalance_studies:figure_2", "Theorem 1 and simulation over rho", SHARPBALANCE),
        ("sharpbalance-figure-8", "sharpbalance_studies:figure_8", "Theorem 2 and simulation over rho and k",
         SHARPBALANCE),
        ("sharpbalance-figure-9", "sharpbalance_studies:figure_9", "Theorem 1 at several step sizes", SHARPBALANCE),
        ("sharpbalance-figure-10", "sharpbalance_studies:figure_10", "Theorem 2 at several step sizes", SHARPBALANCE),
        ("sharpbalance-jensen-gap", "sharpbalance_studies:jensen_gap", "Theorem 1's lower bounds, over ||w*||",
         SHARPBALANCE),
        ("sharpness-by-ascent", "sharpbalance_studies:by_ascent", "projected ascent against the trust-region solution",
         SHARPBALANCE),
        ("wishart-moments", "wishart:wishart_moments", "phi(i, j): limit, next term and exact", SHARPBALANCE),
        ("table-1", "universal:table_1", "measured values of Table 1 beside closed forms", UNIVERSAL),
        ("explicit-bias", "zero_loss_manifold:explicit_bias",
         "where Trace-, Frob- and Det-SAM end on a valley of minima", UNIVERSAL),
        ("universality", "universality:universality", "Theorems 6 and 7 as computations, and their errors", UNIVERSAL),
        ("invariance", "invariance:invariance", "Figure 2, Examples 1 to 3, and the conditions of Theorems 10 and 11",
         UNIVERSAL, "universal/fig2"),
        ("small-radius", "small_radius:asymptotics", "sharpness over its limit, against the radius", MODERN),
        ("sparse-regression", "diagonal_networks:sparse_regression",
         "Figure 7: 200 diagonal networks and rank correlations", MODERN, "modern-look/fig7"),
        ("weight-scaling", "weight_scaling:weight_scaling",
         "Figure 1: adaptive sharpness against the scale of the weights", MODERN, "modern-look/fig1"),
        ("generalisation-bound", "pac_bayes:generalisation_bound",
         "Theorem 1's gap as printed and proved, and samples in which it says something", AGNOSTIC),
        ("gradient-congruence", "agnostic:gradient_congruence",
         "Theorem 2 and the cosine of two gradients in training", AGNOSTIC),
        ("bilevel", "bilevel:bilevel", "a naive bilevel method beside Agnostic-SAM, with wrong labels", AGNOSTIC),
        ("edge-of-stability", "sa_sam:edge_of_stability", "lambda_max against 2 / eta for four methods", SA_SAM),
    )
}  # fmt: skip


def find(name: str) -> Entry:
    """The study of that name.

    Parameters
    ----------
    name
        A name in `NAMED`; for another one, the error suggests the nearest.

    Examples
    --------
    >>> figures.find("edge-of-stability").paper
    'Naganuma et al. 2024'

    """
    if name not in NAMED:
        raise ValueError(unknown("study", name, NAMED))
    return NAMED[name]


def run(name: str, settings: Settings | None = None) -> Result:
    """Runs a study.

    Parameters
    ----------
    name
        A name in `NAMED`.
    settings
        Seed, sizes and progress; the defaults by default.

    Examples
    --------
    >>> settings = figures.Settings(sizes={"columns": (2, 4), "power": 1})
    >>> result = figures.run("wishart-moments", settings)
    >>> [round(row["exact_0"], 4) for row in result.data["by_columns"]]  # phi(1, 0) of 40 x 2 and of 80 x 4
    [0.04, 0.05]

    """
    return find(name).load()(settings or Settings())


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
    >>> result = figures.Result({"ratio": 1.0}, {}, ["The ratio is 1."])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in figures.save(result, "mine", folder)]
    ['mine.html', 'mine.json']

    """
    path = check_path(out)
    stem = path.with_suffix("") if path.suffix in SUFFIXES and not path.is_dir() else path / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"name": name, "words": list(result.words)}
    if settings is not None:
        content[RUN] = {"seed": settings.seed, "quick": settings.quick, "sizes": json_safe(dict(settings.sizes))}
        content[RUN]["date"] = datetime.now(UTC).date().isoformat()
    texts = {".html": _page(result, name), ".json": json.dumps(content | result.plain(), indent=1, allow_nan=False)}
    paths = {stem.with_name(stem.name + suffix): text for suffix, text in texts.items()}
    for path, text in paths.items():
        with atomic_write(path) as file:
            file.write(text.encode())
    return list(paths)


def check_path(out: str | os.PathLike[str]) -> Path:
    """The path of a folder, or of a file that ends in .html or .json; raises ValueError for any other."""
    path = Path(out)
    if path.suffix not in ("", *SUFFIXES) and not path.is_dir():
        raise ValueError(f"a study is written to a folder, or to a file ending in .html or .json, not to {str(out)!r}")
    return path


def _page(result: Result, name: str) -> str:
    import plotly.graph_objects as go

    figure = go.Figure(result.figure).to_plotly_json()
    layout = figure["layout"]
    title = layout.pop("title", {}).get("text", "")
    seed = [f"Seed {result.data['seed']}."] if "seed" in result.data else []
    return figure_page(figure, f"{name}: {title}" if title else name, " ".join([*result.words, *seed]))


def _fits(value: Any, default: Any) -> bool:
    """Whether a value has the type of the default; a list is as good as a tuple."""
    if isinstance(default, tuple):
        return isinstance(value, (tuple, list)) and len(value) > 0 and all(_fits(v, default[0]) for v in value)
    if isinstance(value, bool) or isinstance(default, bool):
        return type(value) is type(default)
    return isinstance(value, (int, float) if isinstance(default, float) else type(default))
