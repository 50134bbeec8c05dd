"""The registration of measures: the decorator above a class or a function states all that is known of the measure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from .._util.registry import Registry
from ..core.metric import Elementwise
from .estimate import Kind, Measure

Make = TypeVar("Make", bound=Callable[..., Measure])

MAGNITUDE = Elementwise(0.0, everywhere=True)  # c = |w| for every weight: the scale of measures named adaptive_...
ANDRIUSHCHENKO = "Andriushchenko et al. 2023"  # A modern look
PRODUCTS = "up to 200 products"  # at default options


@dataclass(frozen=True)
class Registered:
    """A measure by name; called without arguments, or with a radius if it has one, it makes the measure.

    Parameters
    ----------
    name
        The name in `steppe.measure`, studies and commands.
    make
        The class, or a function. A parameter `rho` is the radius that is written after the name, as in worst_l2@0.1.
    does
        What it is, in a sentence.
    label
        The same in a few words, for axes of figures.
    kind
        The kind of the estimate.
    cost
        What it takes at default options, such as "up to 200 products".
    paper
        The authors and the year.

    """

    name: str
    make: Callable[..., Measure]
    does: str
    label: str
    kind: Kind
    cost: str
    paper: str = ""

    def __call__(self, radius: float | None = None) -> Measure:
        return self.make() if radius is None else self.make(rho=radius)

    @property
    def has_radius(self) -> bool:
        """Whether a radius can be written after the name."""
        return "rho" in inspect.signature(self.make).parameters


MEASURES: Registry[Registered] = Registry(
    "measure",
    "steppe.measures",
    tuple(
        f"{__package__}.{module}"
        for module in ("sharpness", "curvature.measures", "fisher", "input_curvature", "universal", "modern_look")
    ),
)


def register(
    name: str,
    *,
    does: str,
    kind: Kind,
    cost: str,
    label: str = "",
    paper: str = "",
    args: Sequence[Any] = (),
    variants: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Make], Make]:
    """A decorator that registers a class, or a function that makes a measure, as the measure of that name.

    Parameters
    ----------
    name, does, kind, cost, label, paper
        As in `steppe.measures.MEASURES`: the name, what the measure is, its kind and its cost, a few words for axes
        (the name without them), and the authors and the year. Write texts out: pages read them before torch is there.
    args
        The first arguments that make the measure; a radius among them cannot be written after the name.
    variants
        Other names, and the arguments that make these measures; with `paper` if theirs is another.

    Examples
    --------
    Above the class, which can be made without arguments:

    >>> described = steppe.measures.register("loss", does="the mean loss", kind="exact", cost="1 loss")
    >>> steppe.MEASURES["loss"].cost, steppe.MEASURES["loss"]()
    ('1 loss', Loss())

    """

    def add(make: Make) -> Make:
        for other, options in {name: {}, **(variants or {})}.items():
            arguments = {k: v for k, v in options.items() if k != "paper"}
            made = partial(make, *args, **arguments) if args or arguments else make
            one = Registered(other, made, does, label or name, kind, cost, options.get("paper", paper))
            MEASURES.add(other, one, make.__module__)
        return make

    return add
