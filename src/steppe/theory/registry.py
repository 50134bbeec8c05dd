"""Studies by name: each is a function from settings to numbers, a figure and sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from .._util.names import unknown
from .result import Result, Settings

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
    >>> entry = steppe.theory.NAMED["small-radius"]
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
    "sharpbalance-figure-1b": Entry(
        "figures", "figure_1b", "sharpness and diversity, training on all rows or on parts", SHARPBALANCE
    ),
    "sharpbalance-figure-2": Entry("figures", "figure_2", "Theorem 1 and simulation over rho", SHARPBALANCE),
    "sharpbalance-figure-8": Entry("figures", "figure_8", "Theorem 2 and simulation over rho and k", SHARPBALANCE),
    "sharpbalance-figure-9": Entry("figures", "figure_9", "Theorem 1 at several step sizes", SHARPBALANCE),
    "sharpbalance-figure-10": Entry("figures", "figure_10", "Theorem 2 at several step sizes", SHARPBALANCE),
    "sharpbalance-jensen-gap": Entry("checks", "jensen_gap", "Theorem 1's lower bounds, over ||w*||", SHARPBALANCE),
    "sharpness-by-ascent": Entry(
        "checks", "by_ascent", "projected ascent against the trust-region solution", SHARPBALANCE
    ),
    "wishart-moments": Entry("checks", "wishart_moments", "phi(i, j): limit, next term and exact", SHARPBALANCE),
    "table-1": Entry("universal", "table_1", "measured values of Table 1 beside closed forms", UNIVERSAL),
    "explicit-bias": Entry(
        "zero_loss_manifold", "explicit_bias", "where Trace-, Frob- and Det-SAM end on a valley of minima", UNIVERSAL
    ),
    "small-radius": Entry("small_radius", "asymptotics", "sharpness over its limit, against the radius", MODERN),
    "sparse-regression": Entry(
        "diagonal_networks",
        "sparse_regression",
        "Figure 7: 200 diagonal networks and rank correlations",
        MODERN,
        "modern-look/fig7",
    ),
    "weight-scaling": Entry(
        "weight_scaling",
        "weight_scaling",
        "Figure 1: adaptive sharpness against the scale of the weights",
        MODERN,
        "modern-look/fig1",
    ),
    "gradient-congruence": Entry(
        "agnostic", "gradient_congruence", "Theorem 2 and the cosine of two gradients in training", AGNOSTIC
    ),
    "edge-of-stability": Entry("sa_sam", "edge_of_stability", "lambda_max against 2 / eta for four methods", SA_SAM),
}


def find(name: str) -> Entry:
    """The study of that name.

    Parameters
    ----------
    name
        A name in `NAMED`; for another one, the error suggests the nearest.

    Examples
    --------
    >>> steppe.theory.find("edge-of-stability").paper
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
    >>> settings = steppe.theory.Settings(sizes={"columns": (2, 4), "power": 1})
    >>> result = steppe.theory.run("wishart-moments", settings)
    >>> [round(row["exact_0"], 4) for row in result.data["by_columns"]]  # phi(1, 0) of 40 x 2 and of 80 x 4
    [0.04, 0.05]

    """
    return find(name).load()(settings or Settings())
