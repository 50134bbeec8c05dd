"""The explicit bias of Trace-, Frob- and Det-SAM on a known zero-loss manifold (universal-SAM paper, Theorem 9).

Theorem 9: an approximate minimiser of L + rho^2 R_rho near the zero-loss manifold approximately minimises S on it.

On a curve of minima in the plane the three measures do not differ: the Hessian has no curvature along the curve, so
its other eigenvalue h gives tr H = ||H||_F = h, the product of the non-zero eigenvalues is h too, and det H = 0. Three
parameters are the fewest in which they differ; this module has three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, log, pi, sqrt
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from steppe import DETERMINANT, DetSAM, FrobSAM, Hypercube, SharpnessAware, TraceSAM, UniversalSAM
from steppe.extend import BLUE, GREEN, GREY, ORANGE, PURPLE

from .panels import Panel, dots, line, picture
from .registry import Result, Settings

# The curvatures a(s) and b(s) across the valley, as coefficients of 1, s, s^2: positive for every s. Their sum of
# squares has its minimum at -0.32, their sum at 0 and their product at 0.77.
ACROSS = ((1.5, 0.5, 0.25), (0.5, -0.5, 0.25))


def curvatures(s: float) -> tuple[float, float]:
    """The two eigenvalues across the valley at s; the third one, along it, is 0."""
    a, b = ((p + q * s + r * s * s) for p, q, r in ACROSS)
    return a, b


class Valley(nn.Module):
    """The loss L(s, y, z) = (a(s) y^2 + b(s) z^2) / 2, which is zero exactly where y = z = 0."""

    halves: Tensor

    def __init__(self, s: float, y: float = 0.0, z: float = 0.0) -> None:
        super().__init__()
        self.along = nn.Parameter(torch.tensor(s, dtype=torch.float64))
        self.across = nn.Parameter(torch.tensor([y, z], dtype=torch.float64))
        self.register_buffer("halves", torch.tensor(ACROSS, dtype=torch.float64) / 2)

    def forward(self) -> Tensor:
        s = self.along
        p, q, r = self.halves.T
        loss: Tensor = (p + q * s + r * (s * s)) @ self.across.square()
        return loss

    @torch.no_grad()
    def backward(self) -> Tensor:
        """Computes the loss and sets the gradients, by formula: this takes a third of autograd's time."""
        s, (y, z) = self.along.item(), self.across.tolist()
        a, b = curvatures(s)
        slopes = (q + 2 * r * s for _, q, r in ACROSS)
        along = sum(t * x * x for t, x in zip(slopes, (y, z), strict=True)) / 2
        self.along.grad = torch.tensor(along, dtype=torch.float64)
        self.across.grad = torch.tensor([a * y, b * z], dtype=torch.float64)
        return torch.tensor(self.loss(), dtype=torch.float64)

    def loss(self) -> float:
        """The loss as a number, without a gradient."""
        (a, b), (y, z) = curvatures(self.along.item()), self.across.tolist()
        return float((a * y * y + b * z * z) / 2)


def measures(s: float) -> dict[str, float]:
    """The three measures on the manifold at s, with the product of the non-zero eigenvalues as the determinant."""
    a, b = curvatures(s)
    return {"trace": a + b, "frobenius": a * a + b * b, "determinant": a * b}


def cube_measure(s: float, half: float) -> float:
    """The log of Det-SAM's measure on the cube [-half, half]^3 at s: -2 log of the mean of exp(-v' H v / 2).

    For a small cube it tends to half^2 tr(H) / 3, for a large one to log(a b) plus a constant.
    """
    scaled = [half * sqrt(value / 2) for value in curvatures(s)]
    return -2 * sum(log(sqrt(pi) / 2 * erf(x) / x) for x in scaled)  # means of exp(-value t^2 / 2) over |t| < half


def argmin(function: Callable[[float], float], low: float = -3.0, high: float = 3.0) -> float:
    """The s that minimises a function: a grid search, then a bounded search around its lowest point."""
    from scipy.optimize import minimize_scalar

    grid = torch.linspace(low, high, 241).tolist()
    at = min(grid, key=function)
    return float(minimize_scalar(function, bounds=(at - 0.05, at + 0.05), method="bounded", options={"xatol": 1e-9}).x)


def minima() -> dict[str, float]:
    """The s that minimises each measure on the manifold."""
    return {name: argmin(lambda s, name=name: measures(s)[name]) for name in ("trace", "frobenius", "determinant")}  # type: ignore[misc]


def determinant_regulariser(s: float, loss: float, rho: float) -> float:
    """R_rho of the third row of Table 1 off the manifold, where L(x) = loss: a(s) b(s) exp(-2 L(x) / rho^2).

    It follows exactly from completing the square in the Gaussian integral where the loss is quadratic. It decreases as
    the loss increases, so L + strength rho^2 R_rho has its minimum on the manifold only if 2 strength a b < 1
    (`loss_at_minimum`). Theorem 9 does not cover this, because its U = {|grad L| < rho^2} contains no point with a loss
    of the order of rho^2.
    """
    return measures(s)["determinant"] * exp(-2 * loss / rho**2)


def loss_at_minimum(s: float, strength: float, rho: float) -> float:
    """The loss L at which L + strength rho^2 R_rho has its minimum at s: 0, or rho^2 / 2 log(2 strength a b)."""
    return max(0.0, rho**2 / 2 * log(2 * strength * measures(s)["determinant"]))


# -- training ---------------------------------------------------------------------------------------------------------

LARGE = 4.0  # half side of a cube that contains the Gaussians: three standard deviations at the least determinant
SMALL = 0.01  # half side; appendix O: sides of 0.02


@dataclass(frozen=True)
class Run:
    """A method and how it is trained."""

    method: UniversalSAM
    faster: float  # lr of s over lr of y and z: the gradient of s is smaller by strength rho^2
    own: str  # the measure that the method minimises along the manifold


VOLUME = (2 * LARGE) ** 4 / (2 * pi) ** 2  # scales the mean over the large cube to an integral
STRENGTH = 0.03  # on the large cube: 2 strength a b < 1/5 for all s
METHODS: Mapping[str, Run] = {
    "trace": Run(TraceSAM(rho=0.1, n=2), 4.0 / 0.1**2, "trace"),
    "frobenius": Run(FrobSAM(rho=0.1, n=6, strength=0.05), 0.2 / (0.05 * 0.1**2), "frobenius"),
    "determinant": Run(
        DetSAM(0.1, 32, STRENGTH / VOLUME, replace(DETERMINANT, laws=(Hypercube(LARGE),))),
        0.5 / (STRENGTH * 0.1**2),
        "determinant",
    ),
    "determinant, small cube": Run(  # the cube, the radius and the largest strength of appendix O
        DetSAM(1.0, 2, 1.0, replace(DETERMINANT, laws=(Hypercube(SMALL),))), 2.0 / SMALL**2, "trace"
    ),
}


def train(run: Run, start: float, steps: int, lr: float = 0.1, seed: int = 0) -> Iterator[tuple[float, float]]:
    """Trains with step sizes that decrease to a tenth, and yields s and the loss after every step."""
    model = Valley(start, 0.02, -0.02)
    base = torch.optim.SGD([{"params": [model.across]}, {"params": [model.along]}], lr=lr)
    # the loss has no noise of its own, and a diverging path is visible in its end
    opt = SharpnessAware(base, run.method, model=model, seed=seed, same_noise=False, on_nonfinite=None)
    for step in range(steps):
        current_lr = lr * 0.1 ** (step / steps)
        base.param_groups[0]["lr"], base.param_groups[1]["lr"] = current_lr, current_lr * run.faster
        opt.step(model.backward)
        yield model.along.item(), model.loss()


def end(path: Sequence[tuple[float, float]]) -> float:
    """The end of a path: the mean of s over its last quarter."""
    return fmean(s for s, _ in path[-len(path) // 4 :])


@dataclass(frozen=True)
class Sizes:
    """Sizes of `explicit-bias`."""

    steps: int = 800
    lr: float = 0.1
    starts: tuple[float, ...] = (-1.5, 1.5)


def explicit_bias(settings: Settings) -> Result:
    """Three measures along a zero-loss manifold, their minima, and the ends of training with their methods."""
    sizes = settings.of(Sizes(), steps=150)
    best = minima()
    runs: list[dict[str, Any]] = []
    for name, run in METHODS.items():
        for start in sizes.starts:
            path = list(train(run, start, sizes.steps, sizes.lr, settings.seed))
            s = [s for s, _ in path[:: max(1, sizes.steps // 400)]]
            loss = fmean(loss for _, loss in path[-len(path) // 4 :])
            runs.append({"method": name, "own": run.own, "start": start, "end": end(path), "loss": loss, "path": s})
            settings.tick(len(runs), len(METHODS) * len(sizes.starts))
    halves = torch.logspace(-2, 1, 25, dtype=torch.float64).tolist()
    cubes = [{"half": half, "lowest": argmin(lambda s, h=half: cube_measure(s, h))} for half in halves]  # type: ignore[misc]
    words = [_sentence(name, [r for r in runs if r["method"] == name], best) for name in METHODS]
    words.append(
        f"On the paper's cube of half side {SMALL}, Det-SAM's own measure has its minimum at "
        f"s = {cubes[0]['lowest']:.3f}, like the trace: with a cube much smaller than 1 / sqrt(lambda), Det-SAM is "
        "Trace-SAM with another strength."
    )
    data = {"minima": best, "runs": runs, "cubes": cubes, "sizes": vars(sizes)}
    return Result(data, _draw(data), words)


def _sentence(name: str, runs: Sequence[Mapping[str, Any]], best: Mapping[str, float]) -> str:
    own = runs[0]["own"]
    ends = " and ".join(f"{r['end']:.2f}" for r in runs)
    nearest = all(min(best, key=lambda k: abs(best[k] - r["end"])) == own for r in runs)
    return (
        f"Method for the {name}: training ends at s = {ends}. The minimum of the {own}, at {best[own]:.2f}, "
        f"{'is' if nearest else 'is NOT'} the nearest of the three."
    )


COLOURS = {"trace": BLUE, "frobenius": ORANGE, "determinant": GREEN, "determinant, small cube": PURPLE}


def _draw(data: Mapping[str, Any]) -> dict[str, Any]:
    grid = torch.linspace(-1.6, 1.6, 161).tolist()
    along, paths = [], []
    for name, at in data["minima"].items():
        floor = measures(at)[name]
        along.append(line(name, grid, [measures(s)[name] / floor for s in grid], COLOURS[name]))
        along.append(dots("minimum", [at], [1.0], COLOURS[name], marker={"symbol": "diamond", "size": 11}))
    for i, run in enumerate(data["runs"]):
        colour, steps = COLOURS[run["method"]], data["sizes"]["steps"]
        ticks = [k * steps / len(run["path"]) for k in range(len(run["path"]))]
        paths.append(line(run["method"], ticks, run["path"], colour, line={"width": 1.4}))
        height = 1 + 0.04 * (1 + i)
        along.append(dots("end of training", [run["end"]], [height], colour, marker={"symbol": "x", "size": 10}))
    halves = [c["half"] for c in data["cubes"]]
    cubes = [line("minimum on a cube", halves, [c["lowest"] for c in data["cubes"]], GREY)]
    levels = [(at, f"minimum of {name}") for name, at in data["minima"].items()]
    return picture(
        "Three measures along a valley of minima, and the ends of training with their methods",
        Panel("measure over its minimum", "s along the manifold", "ratio", along, range_y=(0.95, 2)),
        Panel("training", "step", "s", paths, across=levels),
        Panel("Det-SAM's measure by its cube", "half side of the cube", "s at its minimum", cubes, "x", levels),
    )
