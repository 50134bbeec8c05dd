"""Diagonal linear networks: their sharpness in closed form, and whether it ranks solutions by test loss.

A modern look (Andriushchenko et al. 2023), section 5.2 and appendix A.2, with L(w) = ||X (u * v) - y||^2 (eq. 6), which
has no 1/2: all second derivatives are twice the printed ones. Functions accept stacks of networks, u and v of (..., d).

The study repeats Figure 7: 200 networks trained to a loss of 1e-5 with different learning rates and initial weights,
d = 200, 90 % of the coefficients zero. The paper gives neither the number of rows, nor the rates, nor the scales, and
the released code has no such study, so these defaults are steppe's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steppe.extend import BLUE

from .panels import Panel, dots, picture
from .registry import Result, Settings

# -- closed forms -----------------------------------------------------------------------------------------------------


class Sharpness(NamedTuple):
    """tr(D H D) and lambda_max(D H D): average- and worst-case sharpness at a small radius, over rho^2 / 2."""

    trace: Tensor
    top: Tensor


def loss(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """||X (u * v) - y||^2 of every network, without a mean or a factor 1/2."""
    return ((u * v) @ x.T - y).square().sum(-1)


def gradients(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients 2 v * X'r and 2 u * X'r, r = X (u * v) - y."""
    xr = 2 * ((u * v) @ x.T - y) @ x
    return v * xr, u * xr


def hessian(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """2 [[V X'X V, V X'X U + diag(X'r)], [., U X'X U]]: twice eq. 7, with its lower left block transposed."""
    gram, xr = x.T @ x, ((u * v) @ x.T - y) @ x

    def block(a: Tensor, b: Tensor) -> Tensor:
        return a.unsqueeze(-1) * gram * b.unsqueeze(-2)

    corner = block(v, u) + torch.diag_embed(xr)
    upper = torch.cat([block(v, v), corner], -1)
    lower = torch.cat([corner.mT, block(u, u)], -1)
    return 2 * torch.cat([upper, lower], -2)


def balanced_scales(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scales sqrt(|u| / |v|) of u and sqrt(|v| / |u|) of v, which make sharpness a function of u * v alone.

    Section 5.2 prints the two in the other order; its own sums need this one.
    """
    ratio = (u.abs() / v.abs()).sqrt()
    return ratio, 1 / ratio


def printed_scales(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The scales as section 5.2 prints them, with which sharpness is not a function of u * v."""
    first, second = balanced_scales(u, v)
    return second, first


def magnitude_scales(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scales |w|: elementwise adaptive sharpness."""
    return u.abs(), v.abs()


def unit_scales(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scales 1: standard sharpness."""
    return torch.ones_like(u), torch.ones_like(v)


def whitened_sharpness(u: Tensor, v: Tensor, scales: tuple[Tensor, Tensor]) -> Sharpness:
    """At a global minimum with X'X = I: sum and maximum over i of 2 (c_u^2 v^2 + c_v^2 u^2).

    Balanced scales give 4 ||beta||_1 and 4 ||beta||_inf, magnitudes 4 ||beta||_2^2 and 4 ||beta||_inf^2. X'X = I needs
    at least as many rows as columns; then beta = X'y is the same at every minimum, and all minima generalise equally.
    """
    diagonal = 2 * ((scales[0] * v).square() + (scales[1] * u).square())
    return Sharpness(diagonal.sum(-1), diagonal.amax(-1))


def sharpness(x: Tensor, y: Tensor, u: Tensor, v: Tensor, scales: tuple[Tensor, Tensor]) -> Sharpness:
    """The same for any data and any weights, from the Hessian.

    The trace depends on X only through the norms of its columns, so unit columns are enough for 4 ||beta||_1.
    """
    c = torch.cat(scales, -1)
    matrix = c.unsqueeze(-1) * hessian(x, y, u, v) * c.unsqueeze(-2)
    return Sharpness(matrix.diagonal(dim1=-2, dim2=-1).sum(-1), torch.linalg.eigvalsh(matrix)[..., -1])


# -- the study --------------------------------------------------------------------------------------------------------

CHECK_EVERY = 50  # steps between two checks of the losses


@dataclass(frozen=True)
class Sizes:
    """Sizes of `sparse-regression`."""

    networks: int = 200  # section 5.2
    dimension: int = 200  # section 5.2
    zeros: float = 0.9  # section 5.2: "90% sparsity"
    rows: int = 100  # enough to recover 20 of 200 coefficients by their l1 norm, too few for 200 of them
    target: float = 1e-5  # section 5.2: training loss; here the sum of squares of eq. 6
    scales: tuple[float, ...] = (0.01, 0.3)  # of the initial weights, from small (rich regime) to large
    rates: tuple[float, ...] = (0.4, 3.0)  # relative to the largest step that is certainly stable
    batch: int = 10  # rows per step; with full batches every tau changes by at most 0.01
    most: int = 60_000  # steps
    dense: bool = False  # dense true coefficients, which ||beta||_inf should rank


@dataclass(frozen=True)
class Task:
    """Inputs and targets of a linear regression, and the true coefficients."""

    x: Tensor
    y: Tensor
    truth: Tensor

    def test_loss(self, beta: Tensor) -> Tensor:
        """E (x' beta - x' truth)^2 over new rows from N(0, I): the squared distance, without sampling."""
        return (beta - self.truth).square().sum(-1)


def task(sizes: Sizes, generator: torch.Generator) -> Task:
    """Gaussian rows over sqrt(rows), so that columns have about unit norm; a truth of unit norm; no label noise."""
    d = sizes.dimension
    x = torch.randn(sizes.rows, d, dtype=torch.float64, generator=generator) / sizes.rows**0.5
    truth = torch.randn(d, dtype=torch.float64, generator=generator)
    nonzero = d if sizes.dense else round((1 - sizes.zeros) * d)
    truth[torch.randperm(d, generator=generator)[nonzero:]] = 0
    truth /= truth.norm()
    return Task(x, x @ truth, truth)


@dataclass(frozen=True)
class Trained:
    """A stack of networks after training, and which of them reached the target loss."""

    u: Tensor
    v: Tensor
    scale: Tensor  # of the initial weights
    rate: Tensor
    steps: Tensor
    loss: Tensor
    reached: Tensor


def train(
    problem: Task,
    sizes: Sizes,
    generator: torch.Generator,
    tick: Callable[[int, int], object] = lambda done, total: None,
) -> Trained:
    """Mini-batch gradient descent for all networks at once, each at its own rate; a network stops at the target loss.

    All networks use the same rows in a step, so that a step is two matrix products. Training is in single precision,
    which is enough for a loss of 1e-5; measurements afterwards are in double precision.
    """
    x, y, k = problem.x.float(), problem.y.float(), sizes.networks

    def log_uniform(ends: Sequence[float]) -> Tensor:
        low, high = (torch.tensor(e).log() for e in (ends[0], ends[-1]))
        return (low + (high - low) * torch.rand(k, 1, generator=generator)).exp()

    scale, relative_rate = log_uniform(sizes.scales), log_uniform(sizes.rates)
    u, v = (scale * torch.randn(k, sizes.dimension, generator=generator) for _ in range(2))
    # a batch loss, scaled up to all rows, has a curvature of at most 2 parts ||batch||^2 max(u^2 + v^2)
    parts = sizes.rows / sizes.batch
    top = 2 * parts * float(torch.linalg.matrix_norm(x[: sizes.batch], 2)) ** 2
    rate = relative_rate * 2 / (top * (2 * problem.truth.abs().max().float() + 2 * scale**2))
    steps = torch.zeros(k, dtype=torch.int64)
    active, state = torch.arange(k), (u.clone(), v.clone(), 2 * parts * rate)
    for step in range(1, sizes.most + 1):
        a, b, step_size = state
        rows = torch.randint(sizes.rows, (sizes.batch,), generator=generator)
        batch = x[rows]
        update = step_size * (((a * b) @ batch.T - y[rows]) @ batch)
        state = (a - b * update, b - a * update, step_size)
        if step % CHECK_EVERY == 0 or step == sizes.most:
            losses = loss(x, y, state[0], state[1])
            u[active], v[active], steps[active] = state[0], state[1], step
            unfinished = (losses > sizes.target) & (losses < 1e6)
            tick(k - int(unfinished.sum()), k)
            active, state = active[unfinished], (state[0][unfinished], state[1][unfinished], state[2][unfinished])
            if not len(active):
                break
    u, v = u.double(), v.double()
    final = loss(problem.x, problem.y, u, v)
    return Trained(u, v, scale[:, 0], rate[:, 0], steps, final, final <= 1.01 * sizes.target)


def quantities(problem: Task, trained: Trained) -> dict[str, Tensor]:
    """The quantities of Figure 7 for every network: the test loss, two norms of beta and four kinds of sharpness."""
    u, v = trained.u, trained.v
    standard = sharpness(problem.x, problem.y, u, v, unit_scales(u, v))
    adaptive = sharpness(problem.x, problem.y, u, v, balanced_scales(u, v))
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


GAIN = "adaptive minus standard tr"
RESAMPLES = 400


def correlations(values: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Kendall's tau between all pairs."""
    from scipy.stats import kendalltau

    lists = {name: value.tolist() for name, value in values.items()}
    return {a: {b: float(kendalltau(lists[a], lists[b]).statistic) for b in lists} for a in lists}


def resampled(values: Mapping[str, Tensor], seed: int) -> dict[str, tuple[float, float]]:
    """95 % intervals of tau with the test loss, and of adaptive minus standard trace: a bootstrap over networks."""
    import numpy as np
    from scipy.stats import kendalltau

    arrays = {name: value.numpy() for name, value in values.items()}
    test, n = arrays.pop("test loss"), len(next(iter(arrays.values())))
    generator = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {name: [] for name in (*arrays, GAIN)}
    for _ in range(RESAMPLES):
        rows = generator.integers(0, n, n)
        tau = {name: float(kendalltau(x[rows], test[rows]).statistic) for name, x in arrays.items()}
        for name, value in (tau | {GAIN: tau["tr, adaptive"] - tau["tr"]}).items():
            draws[name].append(value)
    low, high = (np.percentile(list(draws.values()), q, axis=1) for q in (2.5, 97.5))
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(draws)}


def sparse_regression(settings: Settings) -> Result:
    """Figure 7 reproduced: sharpness against test loss of 200 diagonal linear networks, and rank correlations."""
    sizes = settings.of(Sizes(), networks=24, dimension=60, rows=30, most=6000)
    generator = torch.Generator().manual_seed(settings.seed)
    problem = task(sizes, generator)
    trained = train(problem, sizes, generator, settings.tick)
    keep = trained.reached
    values = {name: value[keep] for name, value in quantities(problem, trained).items()}
    tau, intervals = correlations(values), resampled(values, settings.seed)
    of_test = {**tau["test loss"], GAIN: tau["test loss"]["tr, adaptive"] - tau["test loss"]["tr"]}
    shown = {k: f"{k} {of_test[k]:+.3f} ({low:+.3f} to {high:+.3f})" for k, (low, high) in intervals.items()}
    ratio = values["tr, adaptive"] / (4 * values["||β||₁"])
    words = [
        f"{int(keep.sum())} of {sizes.networks} networks reached a loss of {sizes.target:g} "
        f"(d = {sizes.dimension}, {sizes.rows} rows, {'dense' if sizes.dense else 'sparse'} truth).",
        f"Kendall's tau with the test loss, and 95 % intervals: {', '.join(shown.values())}.",
        f"tr(DHD) / 4 is ||beta||_1 within {float((ratio - 1).abs().max()):.1%} "
        "(a quarter, not the printed half: eq. 6 has no 1/2, and c is balanced).",
        f"tau between adaptive trace and adaptive lambda_max: {tau['tr, adaptive']['λ max, adaptive']:+.2f}; "
        f"between standard ones: {tau['tr']['λ max']:+.2f}.",
    ]  # fmt: skip
    data = {
        "values": {k: v.tolist() for k, v in values.items()}, "tau": tau, "intervals": intervals, "sizes": vars(sizes),
        "scale": trained.scale[keep].tolist(), "rate": trained.rate[keep].tolist(),
        "steps": trained.steps[keep].tolist(), "loss": trained.loss[keep].tolist(),
    }  # fmt: skip
    return Result(data, _draw(data), words)


PLOTTED = ("||β||₁", "tr, adaptive", "tr", "λ max, adaptive")  # the columns of Figure 7


def _draw(data: Mapping[str, Any]) -> dict[str, Any]:
    panels = []
    colours = {"color": [float(torch.tensor(s).log10()) for s in data["scale"]], "colorscale": "Cividis", "size": 6}
    for i, name in enumerate(PLOTTED):
        last = i == len(PLOTTED) - 1
        bar = {"colorbar": {"title": {"text": "log₁₀ initial scale"}, "thickness": 12}} if last else {}
        trace = dots("network", data["values"][name], data["values"]["test loss"], BLUE, marker={**colours, **bar})
        tau = f"τ = {data['tau']['test loss'][name]:+.2f}"
        panels.append(Panel(f"{name}, {tau}", name, "test loss", [{**trace, "showlegend": False}], "y"))
    return picture("Sharpness and test loss of diagonal linear networks", *panels)
