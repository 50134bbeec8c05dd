"""Sparse regression with diagonal linear networks: does sharpness rank solutions by their test loss?

Figure 7 of A modern look: 200 networks trained to a loss of 1e-5 with different learning rates and first weights,
d = 200, nine coefficients of ten zero. The number of rows, the rates and the scales are not in the paper, and the
released code has no such study: those below are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import diagonal_networks as diagonal
from .panels import BLUE, Panel, dots, picture
from .result import Result, Settings

LOOK = 50  # steps between two looks at the losses


@dataclass(frozen=True)
class Sizes:
    """How many networks on what data, and how they differ."""

    networks: int = 200  # section 5.2
    dimension: int = 200  # section 5.2
    zeros: float = 0.9  # section 5.2: "90% sparsity"
    rows: int = 100  # enough for an l1 norm to find 20 coefficients of 200, too few for d of them
    target: float = 1e-5  # section 5.2: training loss, here the sum of squares of eq. 6
    scales: tuple[float, ...] = (0.01, 0.3)  # of first weights, from small (rich regime) to large
    rates: tuple[float, ...] = (0.4, 3.0)  # of the largest step that is certainly stable
    batch: int = 10  # rows a step; with all of them every tau below is the same within 0.01
    most: int = 60_000  # steps
    dense: bool = False  # the true coefficients are dense instead, which the largest of them should then rank


@dataclass(frozen=True)
class Task:
    """Rows of a linear regression, training and test error, and the coefficients behind them."""

    x: Tensor
    y: Tensor
    truth: Tensor

    def test_loss(self, beta: Tensor) -> Tensor:
        """E (x' beta - x' truth)^2 over new Gaussian rows of variance 1: the squared distance, without sampling."""
        return (beta - self.truth).square().sum(-1)


def task(sizes: Sizes, generator: torch.Generator) -> Task:
    """Gaussian rows over sqrt(rows), so that columns have about unit norm, and a truth of unit norm; no label noise."""
    d = sizes.dimension
    x = torch.randn(sizes.rows, d, dtype=torch.float64, generator=generator) / sizes.rows**0.5
    truth = torch.randn(d, dtype=torch.float64, generator=generator)
    kept = d if sizes.dense else round((1 - sizes.zeros) * d)
    truth[torch.randperm(d, generator=generator)[kept:]] = 0
    truth /= truth.norm()
    return Task(x, x @ truth, truth)


@dataclass(frozen=True)
class Trained:
    """A stack of networks as training left them; those that missed the target are marked."""

    u: Tensor
    v: Tensor
    scale: Tensor  # of the first weights
    rate: Tensor
    steps: Tensor
    loss: Tensor
    reached: Tensor


def train(problem: Task, sizes: Sizes, generator: torch.Generator, tick: Any = lambda done, total: None) -> Trained:
    """Mini-batch gradient descent for all networks at once, each at its own rate; who arrives stays where it is.

    All networks see the same rows at a step, so that a step is two products of matrices. Single precision is enough
    for a loss of 1e-5, and what is measured afterwards is measured in double.
    """
    x, y, k = problem.x.float(), problem.y.float(), sizes.networks

    def spread(ends: Sequence[float]) -> Tensor:
        low, high = (torch.tensor(e).log() for e in (ends[0], ends[-1]))
        return (low + (high - low) * torch.rand(k, 1, generator=generator)).exp()

    scale, share = spread(sizes.scales), spread(sizes.rates)
    u, v = (scale * torch.randn(k, sizes.dimension, generator=generator) for _ in range(2))
    # the loss of some rows, scaled up to all of them, has a curvature of at most 2 parts ||rows||^2 max(u^2 + v^2)
    parts = sizes.rows / sizes.batch
    top = 2 * parts * float(torch.linalg.matrix_norm(x[: sizes.batch], 2)) ** 2
    rate = share * 2 / (top * (2 * problem.truth.abs().max().float() + 2 * scale**2))
    steps = torch.zeros(k, dtype=torch.int64)
    alive, here = torch.arange(k), (u.clone(), v.clone(), 2 * parts * rate)
    for step in range(1, sizes.most + 1):
        a, b, stride = here
        rows = torch.randint(sizes.rows, (sizes.batch,), generator=generator)
        part = x[rows]
        pull = stride * (((a * b) @ part.T - y[rows]) @ part)
        here = (a - b * pull, b - a * pull, stride)
        if step % LOOK == 0 or step == sizes.most:
            losses = diagonal.loss(x, y, here[0], here[1])
            u[alive], v[alive], steps[alive] = here[0], here[1], step
            going = (losses > sizes.target) & (losses < 1e6)
            tick(k - int(going.sum()), k)
            alive, here = alive[going], (here[0][going], here[1][going], here[2][going])
            if not len(alive):
                break
    u, v = u.double(), v.double()
    loss = diagonal.loss(problem.x, problem.y, u, v)
    return Trained(u, v, scale[:, 0], rate[:, 0], steps, loss, loss <= 1.01 * sizes.target)


def measured(problem: Task, trained: Trained) -> dict[str, Tensor]:
    """What Figure 7 compares, for every network: the test loss, two norms of beta and four kinds of sharpness."""
    u, v = trained.u, trained.v
    standard = diagonal.rescaled(problem.x, problem.y, u, v, diagonal.ones(u, v))
    adaptive = diagonal.rescaled(problem.x, problem.y, u, v, diagonal.balancing(u, v))
    beta = u * v
    return {
        "test loss": problem.test_loss(beta),
        "||β||₁": beta.abs().sum(-1),
        "||β||∞": beta.abs().amax(-1),
        "tr, adaptive": adaptive.trace,
        "tr": standard.trace,
        "λ max, adaptive": adaptive.top,
        "λ max": standard.top,
    }


def correlations(values: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Kendall's tau between all pairs."""
    from scipy.stats import kendalltau

    lists = {name: value.tolist() for name, value in values.items()}
    return {a: {b: float(kendalltau(lists[a], lists[b]).statistic) for b in lists} for a in lists}


def sparse_regression(settings: Settings) -> Result:
    """Figure 7 again: 200 diagonal linear networks, their sharpness against their test loss, and rank correlations."""
    sizes = settings.of(Sizes(), networks=24, dimension=60, rows=30, most=6000)
    generator = torch.Generator().manual_seed(settings.seed)
    problem = task(sizes, generator)
    trained = train(problem, sizes, generator, settings.tick)
    keep = trained.reached
    values = {name: value[keep] for name, value in measured(problem, trained).items()}
    tau = correlations(values)
    near = values["tr, adaptive"] / (4 * values["||β||₁"])
    words = [
        f"{int(keep.sum())} of {sizes.networks} networks reached a loss of {sizes.target:g} "
        f"(d = {sizes.dimension}, {sizes.rows} rows, {'dense' if sizes.dense else 'sparse'} truth).",
        "Kendall's tau with the test loss: "
        + ", ".join(f"{name} {tau['test loss'][name]:+.2f}" for name in values if name != "test loss") + ".",
        f"tr(DHD) / 4 is ||beta||_1 within {float((near - 1).abs().max()):.1%} "
        "(a quarter, not the printed half: eq. 6 has no 1/2, and c is balanced).",
        f"tau between adaptive trace and adaptive lambda_max: {tau['tr, adaptive']['λ max, adaptive']:+.2f}; "
        f"between standard ones: {tau['tr']['λ max']:+.2f}.",
    ]  # fmt: skip
    data = {
        "values": {k: v.tolist() for k, v in values.items()}, "tau": tau, "sizes": vars(sizes),
        "scale": trained.scale[keep].tolist(), "rate": trained.rate[keep].tolist(),
        "steps": trained.steps[keep].tolist(), "loss": trained.loss[keep].tolist(),
    }  # fmt: skip
    return Result(data, _draw(data, words), words)


SHOWN = ("||β||₁", "tr, adaptive", "tr", "λ max, adaptive")  # the columns of Figure 7


def _draw(data: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    panels = []
    colours = {"color": [float(torch.tensor(s).log10()) for s in data["scale"]], "colorscale": "Cividis", "size": 6}
    for i, name in enumerate(SHOWN):
        bar = {"colorbar": {"title": {"text": "log₁₀ first weights"}, "thickness": 12}} if i == len(SHOWN) - 1 else {}
        trace = dots("a network", data["values"][name], data["values"]["test loss"], BLUE, marker={**colours, **bar})
        tau = f"τ = {data['tau']['test loss'][name]:+.2f}"
        panels.append(Panel(f"{name}, {tau}", name, "test loss", [{**trace, "showlegend": False}], "y"))
    return picture("Sharpness and test loss of diagonal linear networks", " ".join(words), *panels)
