"""Limits of sharpness for small radii: A modern look (Andriushchenko et al. 2023), Propositions 1 and 2.

Proposition 1: worst-case sharpness is rho ||T grad L||_q away from critical points (1/p + 1/q = 1), and at a critical
point that is not a maximum rho^2 / 2 max (g' T H T g) / ||g||_p^2. Proposition 2: average-case sharpness is
rho^2 / 2 tr(T H T), for every gradient. The paper prints both as limits of the sharpness itself, which are 0; they are
limits of sharpness over rho or rho^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Ball, Elementwise
from steppe.data import load
from steppe.extend import BLUE, GREEN, ORANGE, VERMILLION
from steppe.measures import AverageCase, AverageLimit, CurvatureLimit, Measure, Objective, SlopeLimit, WorstCase

from .panels import Panel, line, picture
from .registry import Result, Settings

MAGNITUDE = Elementwise(eta=0.0, everywhere=True)  # T = |w|, as in the propositions


@dataclass(frozen=True)
class Sizes:
    """Sizes of `small-radius`."""

    rows: int = 300
    width: int = 16
    steps: int = 60  # of gradient descent before measuring
    radii: int = 9
    draws: int = 200  # pairs of directions, for the average case


def images(rows: int) -> tuple[Tensor, Tensor]:
    """Images of the digits, flattened, between 0 and 1 in double precision, and their classes."""
    train = load("digits").train.rows(torch.arange(rows))
    return train.inputs.flatten(1).double() / 255, train.targets


def network(width: int, seed: int, inputs: int = 64) -> nn.Sequential:
    """A smooth network with one hidden layer, in double precision."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 10)).double()


def descend(model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float = 0.5) -> None:
    """Plain gradient descent on all rows."""
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        opt.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        opt.step()


def at_minimum(model: nn.Module, x: Tensor) -> Objective:
    """An objective with a minimum exactly at the weights: cross-entropy against the model's own probabilities."""
    with torch.no_grad():
        probabilities = model(x).softmax(1)
    return Objective(model, cross_entropy, (x, probabilities))


def asymptotics(settings: Settings) -> Result:
    """Sharpness over its limit, against the radius, at a slope and at a minimum, standard and adaptive."""
    sizes = settings.of(Sizes(), rows=100, steps=20, radii=5, draws=40)
    x, y = images(sizes.rows)
    model = network(sizes.width, settings.seed)
    descend(model, x, y, sizes.steps)
    slope, minimum = Objective(model, cross_entropy, (x, y)), at_minimum(model, x)
    radii = torch.logspace(-4, 0, sizes.radii, dtype=torch.float64).tolist()
    metrics: list[tuple[str, Elementwise | None]] = [("standard", None), ("adaptive", MAGNITUDE)]
    lines: list[tuple[str, str, Objective, Sequence[Measure], Measure, int]] = []  # sharpness, its limit and its order
    for name, metric in metrics:
        for p in (2.0, inf):
            searches = [WorstCase(Ball(r, metric, p)) for r in radii]
            lines.append(("slope", f"{name}, p = {p:g}", slope, searches, SlopeLimit(Ball(1.0, metric, p)), 1))
        longer = [WorstCase(Ball(r, metric), 60, 3) for r in radii]
        lines.append(("minimum", name, minimum, longer, CurvatureLimit(Ball(1.0, metric), rtol=1e-6), 2))
        noise = [AverageCase(r, metric=metric, n=sizes.draws) for r in radii]
        lines.append(("average", name, slope, noise, AverageLimit(1.0, metric, rtol=1e-3), 2))
    curves: dict[str, dict[str, list[float]]] = {"slope": {}, "minimum": {}, "average": {}}
    for done, (where, name, objective, measures, limit, order) in enumerate(lines):
        unit = limit.estimate(objective).value
        ratios = []
        for radius, measure in zip(radii, measures, strict=True):
            ratios.append(measure.estimate(objective).value / (unit * radius**order))
            settings.tick(done * len(radii) + len(ratios), len(lines) * len(radii))
        curves[where][name] = ratios
    words = [
        f"At radius {radii[0]:g}, worst case / (rho ||T g||_q) at a slope is {_range(curves['slope'], 0)}, "
        f"worst case / (rho^2/2 lambda_max) at a minimum {_range(curves['minimum'], 0)}, and "
        f"average case / (rho^2/2 tr) at the slope {_range(curves['average'], 0)}.",
        f"At radius {radii[-1]:g} they are " + ", ".join(_range(c, -1) for c in curves.values()) + ".",
    ]
    data = {"radii": radii, "ratios": curves, "sizes": vars(sizes)}
    return Result(data, _draw(data), words)


def _range(curves: dict[str, list[float]], at: int) -> str:
    values = [c[at] for c in curves.values()]
    return f"{min(values):.3f} to {max(values):.3f}"


TITLES = {
    "slope": "worst case / (rho ||T grad L||<sub>q</sub>), at a slope",
    "minimum": "worst case / (rho²/2 λ<sub>max</sub>(THT)), at a minimum",
    "average": "average case / (rho²/2 tr THT), at a slope",
}


def _draw(data: dict[str, Any]) -> dict[str, Any]:
    panels = []
    names = ("standard, p = 2", "standard, p = inf", "adaptive, p = 2", "adaptive, p = inf")
    colours = dict(zip(names, (BLUE, GREEN, ORANGE, VERMILLION), strict=True))
    for where, title in TITLES.items():
        traces = []
        for label, values in data["ratios"][where].items():
            name = label if label in colours else f"{label}, p = 2"
            traces.append(line(name, data["radii"], values, colours[name], mode="lines+markers"))
        log = "xy" if where == "slope" else "x"
        panels.append(Panel(title, "radius rho", "ratio to its limit", traces, log, [(1.0, "limit")]))
    return picture("Sharpness over its limit for small radii", *panels)
