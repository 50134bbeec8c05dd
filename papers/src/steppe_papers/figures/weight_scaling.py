"""Adaptive sharpness of a linear classifier with scaled weights: A modern look (Andriushchenko et al. 2023), Figure 1.

Scaling the weights by a changes no answer, but the loss: adaptive sharpness tends to zero for large a, also after all
training rows are classified correctly. Normalised logits (eq. 5) remove the scale. With logits +- <w, x> / 2 of two
classes and the ball |d| <= rho |w|, the margin y <w, x> of a row falls by rho sum |w_i x_i| at most, so sharpness with
m = 1 is the mean of softplus(-a worst) - softplus(-a margin); normalised margins are 2 sign(margin).

Data and training are those of the released notebook, which draws another ball; the paper gives none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from steppe.extend import BLUE, GREEN, ORANGE
from steppe.measures import Objective, measure_by_name

from .panels import Panel, dots, line, picture
from .registry import Result, Settings


@dataclass(frozen=True)
class Sizes:
    """Sizes of `weight-scaling`."""

    rows: int = 50
    dimension: int = 100
    spread: float = 0.025  # standard deviation around the two centres, which are at distance 2
    steps: int = 100  # of gradient descent
    rate: float = 5.0
    radii: tuple[float, ...] = (0.1, 0.25, 0.5)  # ours
    scales: int = 61  # factors of the weights from 1/1000 to 1000
    measured: int = 7  # of which as many are also measured


def two_clusters(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows around v and -v, a random vector of length 1, and their signs, alternating."""
    draws = torch.randn(1 + sizes.rows, sizes.dimension, dtype=torch.float64, generator=generator)
    signs = 1.0 - 2.0 * (torch.arange(sizes.rows) % 2)
    return signs.unsqueeze(1) * draws[0] / draws[0].norm() + sizes.spread * draws[1:], signs.double()


def trained_weights(x: Tensor, y: Tensor, steps: int, rate: float) -> Tensor:
    """Gradient descent on the logistic loss from zero."""
    w = torch.zeros_like(x[0])
    for _ in range(steps):
        w += rate * ((y * torch.sigmoid(-y * (x @ w))) @ x) / len(x)
    return w


def sharpness(x: Tensor, y: Tensor, w: Tensor, rho: float) -> Tensor:
    """Worst-case adaptive l_inf sharpness with m = 1 of the logistic loss, in closed form."""
    margin = y * (x @ w)
    return (softplus(rho * (x * w).abs().sum(1) - margin) - softplus(-margin)).mean()


def normalised_sharpness(x: Tensor, y: Tensor, w: Tensor, rho: float) -> Tensor:
    """The same with normalised logits, whose margins are 2 or -2."""
    margin = y * (x @ w)
    worst = margin - rho * (x * w).abs().sum(1)
    return (softplus(-2 * worst.sign()) - softplus(-2 * margin.sign())).mean()


def classifier(w: Tensor) -> nn.Linear:
    """A linear layer with the logits -<w, x> / 2 and <w, x> / 2."""
    model = nn.Linear(len(w), 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.stack([-w, w]) / 2)
    return model


def weight_scaling(settings: Settings) -> Result:
    """Figure 1 in closed form and measured: sharpness over the scale of the weights, with and without normalising."""
    sizes = settings.of(Sizes(), rows=10, scales=13, measured=2)
    x, y = two_clusters(sizes, torch.Generator().manual_seed(settings.seed))
    w = trained_weights(x, y, sizes.steps, sizes.rate)
    wrong = int((y * (x @ w) <= 0).sum())
    scales = torch.logspace(-3, 3, sizes.scales, dtype=torch.float64).tolist()
    few = torch.logspace(-3, 3, sizes.measured, dtype=torch.float64).tolist()
    forms = {"adaptive_worst_linf": sharpness, "adaptive_worst_linf_normalised": normalised_sharpness}
    curves: dict[str, Any] = {}  # one step of an ascent reaches the worst point of a linear model
    points = [(name, rho) for name in forms for rho in sizes.radii]
    furthest = 0.0
    for done, (name, rho) in enumerate(points):
        exact = [float(forms[name](x, y, a * w, rho)) for a in scales]
        measured: list[float] = []
        for a in few:
            objective = Objective(classifier(a * w), cross_entropy, (x, (y > 0).long()), m=1)
            measured.append(measure_by_name(f"{name}@{rho}[starts=1,steps=2]").estimate(objective).value)
            furthest = max(furthest, abs(measured[-1] - float(forms[name](x, y, a * w, rho))))
            settings.tick(done * len(few) + len(measured), len(points) * len(few))
        curves[f"{name}@{rho:g}"] = {"exact": exact, "measured": measured}
    words = [f"{sizes.rows - wrong} of {sizes.rows} rows are classified correctly, at every scale of the weights."]
    for rho in sizes.radii:
        plain, normalised = (curves[f"{name}@{rho:g}"]["exact"] for name in forms)
        highest = max(range(len(scales)), key=plain.__getitem__)
        words.append(
            f"At radius {rho:g}, sharpness is {plain[highest]:.3g} at scale {scales[highest]:.3g} and {plain[-1]:.3g} "
            f"at scale {scales[-1]:g}; with normalised logits it is {_range(normalised)}."
        )
    words.append(f"Measured values differ from closed forms by at most {furthest:.1g}.")
    data = {"scales": scales, "measured_scales": few, "sharpness": curves, "sizes": vars(sizes), "seed": settings.seed}
    return Result(data, _draw(data), words)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g} at every scale" if low == high else f"from {low:.3g} to {high:.3g}"


def _draw(data: dict[str, Any]) -> dict[str, Any]:
    panels = []
    for title, normalised in (("adaptive sharpness", False), ("with normalised logits", True)):
        traces = []
        curves = [(k, v) for k, v in data["sharpness"].items() if ("normalised" in k) == normalised]
        for (name, curve), colour in zip(curves, (BLUE, ORANGE, GREEN), strict=False):
            radius = f"radius {name.partition('@')[2]}"
            traces.append(line(radius, data["scales"], curve["exact"], colour))
            traces.append(dots(f"{radius}, measured", data["measured_scales"], curve["measured"], colour))
        panels.append(Panel(title, "scale of the weights", "sharpness", traces, "x"))
    return picture("Adaptive sharpness of a linear classifier with scaled weights", *panels)
