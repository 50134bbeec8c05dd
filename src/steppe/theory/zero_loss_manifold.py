"""Where Trace-, Frob- and Det-SAM end on a zero-loss manifold that is known (universal-SAM paper, Theorem 9).

Theorem 9: whoever nearly minimises L + rho^2 R_rho near the zero-loss manifold has nearly the least S on it.

On a curve of minima in the plane the three measures cannot differ: the Hessian has no curvature along the curve, so its
one other eigenvalue h makes tr H = ||H||_F = h, the product of the non-zero eigenvalues is h too, and det H = 0. Three
parameters are the fewest that tell them apart, and are what this module takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, log, pi, sqrt
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from ..core.triple import DETERMINANT, Hypercube
from ..methods.universal import UniversalSAM, det_sam, frob_sam, trace_sam
from ..optim.engine import SharpnessAware
from .panels import BLUE, GREEN, GREY, ORANGE, PURPLE, Panel, dots, line, picture
from .result import Result, Settings

# Curvatures across the valley at s: positive for every s, and with sum, sum of squares and product least at -0.32, 0
# and 0.77 in the order Frobenius, trace, determinant
ACROSS = ((1.5, 0.5, 0.25), (0.5, -0.5, 0.25))  # a(s) and b(s) as coefficients of 1, s, s^2


def curvatures(s: float) -> tuple[float, float]:
    """The two eigenvalues across the valley at s; the third, along it, is 0."""
    a, b = ((p + q * s + r * s * s) for p, q, r in ACROSS)
    return a, b


class Valley(nn.Module):
    """L(s, y, z) = (a(s) y^2 + b(s) z^2) / 2, zero where y = z = 0 and nowhere else."""

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
    def read(self) -> Tensor:
        """The loss, with its gradient left in the parameters: by formula, which takes a third of autograd's time."""
        s, (y, z) = self.along.item(), self.across.tolist()
        a, b = curvatures(s)
        turned = (q + 2 * r * s for _, q, r in ACROSS)
        along = sum(t * x * x for t, x in zip(turned, (y, z), strict=True)) / 2
        self.along.grad = torch.tensor(along, dtype=torch.float64)
        self.across.grad = torch.tensor([a * y, b * z], dtype=torch.float64)
        return torch.tensor((a * y * y + b * z * z) / 2, dtype=torch.float64)

    def loss(self) -> float:
        """The loss alone."""
        (a, b), (y, z) = curvatures(self.along.item()), self.across.tolist()
        return float((a * y * y + b * z * z) / 2)


def measures(s: float) -> dict[str, float]:
    """The three measures on the manifold at s; the determinant is the product of the non-zero eigenvalues."""
    a, b = curvatures(s)
    return {"trace": a + b, "frobenius": a * a + b * b, "determinant": a * b}


def cube_measure(s: float, half: float) -> float:
    """The log of Det-SAM's measure on the cube [-half, half]^3 at s: -2 log of the mean of exp(-v' H v / 2).

    A small cube makes it half^2 tr(H) / 3, a large one log(a b) and a constant.
    """
    return -2 * sum(log(_mean_over_a_side(value, half)) for value in curvatures(s))


def _mean_over_a_side(value: float, half: float) -> float:
    """The mean of exp(-value t^2 / 2) over |t| < half."""
    x = half * sqrt(value / 2)
    return sqrt(pi) / 2 * erf(x) / x


def lowest(function: Any, low: float = -3.0, high: float = 3.0) -> float:
    """Where a function of s is least: a grid, and the golden section around its lowest point."""
    from scipy.optimize import minimize_scalar

    grid = torch.linspace(low, high, 241).tolist()
    at = min(grid, key=function)
    return float(minimize_scalar(function, bounds=(at - 0.05, at + 0.05), method="bounded", options={"xatol": 1e-9}).x)


def minima() -> dict[str, float]:
    """Where along the manifold each measure is least."""
    return {name: lowest(lambda s, name=name: measures(s)[name]) for name in ("trace", "frobenius", "determinant")}


def determinant_regulariser(s: float, loss: float, rho: float) -> float:
    """R_rho of the third row of Table 1 off the manifold, where L(x) = loss: a(s) b(s) exp(-2 L(x) / rho^2).

    Completing the square in the Gaussian integral gives it exactly where the loss is quadratic. It falls as the loss
    rises, so L + strength rho^2 R_rho is least on the manifold only while 2 strength a b < 1 (`leaves`). Theorem 9 does
    not see this, because its U = {|grad L| < rho^2} holds no point with a loss of the order of rho^2.
    """
    return measures(s)["determinant"] * exp(-2 * loss / rho**2)


def leaves(s: float, strength: float, rho: float) -> float:
    """The loss at which L + strength rho^2 R_rho is least at s: 0, or rho^2 / 2 log(2 strength a b)."""
    return max(0.0, rho**2 / 2 * log(2 * strength * measures(s)["determinant"]))


# -- training ---------------------------------------------------------------------------------------------------------

LARGE = 4.0  # half the side of a cube that holds the Gaussians: three standard deviations at the least determinant
SMALL = 0.01  # appendix O: sides of 0.02


@dataclass(frozen=True)
class Run:
    """A method, and how much faster than y and z the weight s may go, whose gradient is smaller by strength rho^2."""

    method: UniversalSAM
    faster: float
    own: str  # whose minimum the method's objective has along the manifold


def _large_cube(rho: float = 0.1, n: int = 32, strength: float = 0.03) -> Run:
    """Det-SAM on a large cube, with 2 strength a b < 1/5 all the way and the mean over the cube as its integral."""
    volume = (2 * LARGE) ** 4 / (2 * pi) ** 2
    method = det_sam(rho, n, strength / volume, replace(DETERMINANT, laws=(Hypercube(LARGE),)))
    return Run(method, 0.5 / (strength * rho**2), "determinant")


def _small_cube(n: int = 2, strength: float = 1.0) -> Run:
    """Det-SAM with appendix O's cube, radius and largest strength."""
    method = det_sam(1.0, n, strength, replace(DETERMINANT, laws=(Hypercube(SMALL),)))
    return Run(method, 2.0 / (strength * SMALL**2), "trace")


METHODS: Mapping[str, Run] = {
    "trace": Run(trace_sam(rho=0.1, n=2), 4.0 / 0.1**2, "trace"),
    "frobenius": Run(frob_sam(rho=0.1, n=6, strength=0.05), 0.2 / (0.05 * 0.1**2), "frobenius"),
    "determinant": _large_cube(),
    "determinant, small cube": _small_cube(),
}


def walk(run: Run, start: float, steps: int, lr: float = 0.1, seed: int = 0) -> Iterator[tuple[float, float]]:
    """The place s and the loss after every step of training by this method, step sizes falling to a tenth."""
    model = Valley(start, 0.02, -0.02)
    base = torch.optim.SGD([{"params": [model.across]}, {"params": [model.along]}], lr=lr)
    # nothing here draws in a pass, and a path that leaves the valley shows in its end
    opt = SharpnessAware(base, run.method, model=model, seed=seed, same_noise=False, on_nonfinite=None)
    for step in range(steps):
        now = lr * 0.1 ** (step / steps)
        base.param_groups[0]["lr"], base.param_groups[1]["lr"] = now, now * run.faster
        opt.step(model.read)
        yield model.along.item(), model.loss()


def end(path: Sequence[tuple[float, float]]) -> float:
    """Where along the manifold a path ends: the mean of s over its last quarter."""
    return fmean(s for s, _ in path[-len(path) // 4 :])


@dataclass(frozen=True)
class Sizes:
    """How long, how fast and from where."""

    steps: int = 800
    lr: float = 0.1
    starts: tuple[float, ...] = (-1.5, 1.5)


def explicit_bias(settings: Settings) -> Result:
    """Three measures along a zero-loss manifold, their minima, and where the methods made for them end."""
    sizes = settings.of(Sizes(), steps=150)
    best = minima()
    runs: list[dict[str, Any]] = []
    for name, run in METHODS.items():
        for start in sizes.starts:
            path = list(walk(run, start, sizes.steps, sizes.lr, settings.seed))
            s = [s for s, _ in path[:: max(1, sizes.steps // 400)]]
            loss = fmean(loss for _, loss in path[-len(path) // 4 :])
            runs.append({"method": name, "own": run.own, "start": start, "end": end(path), "loss": loss, "path": s})
            settings.tick(len(runs), len(METHODS) * len(sizes.starts))
    halves = torch.logspace(-2, 1, 25, dtype=torch.float64).tolist()
    cubes = [{"half": half, "lowest": lowest(lambda s, h=half: cube_measure(s, h))} for half in halves]
    words = [_sentence(name, [r for r in runs if r["method"] == name], best) for name in METHODS]
    words.append(
        f"On the paper's cube of half side {SMALL}, Det-SAM's own measure is least at s = {cubes[0]['lowest']:.3f}, "
        "where the trace is least: a cube that is small beside 1 / sqrt(lambda) makes Det-SAM another Trace-SAM."
    )
    data = {"minima": best, "runs": runs, "cubes": cubes, "sizes": vars(sizes)}
    return Result(data, _draw(data, words), words)


def _sentence(name: str, runs: Sequence[Mapping[str, Any]], best: Mapping[str, float]) -> str:
    own = runs[0]["own"]
    ends = " and ".join(f"{r['end']:.2f}" for r in runs)
    near = all(min(best, key=lambda k: abs(best[k] - r["end"])) == own for r in runs)
    verdict = "nearest to it of the three" if near else "NOT nearest to it of the three"
    return f"Trained for the {name}: s ends at {ends}; the {own} is least at {best[own]:.2f}, {verdict}."


COLOURS = {"trace": BLUE, "frobenius": ORANGE, "determinant": GREEN, "determinant, small cube": PURPLE}


def _draw(data: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    grid = torch.linspace(-1.6, 1.6, 161).tolist()
    along, paths = [], []
    for name, at in data["minima"].items():
        floor = measures(at)[name]
        along.append(line(name, grid, [measures(s)[name] / floor for s in grid], COLOURS[name]))
        along.append(dots("least", [at], [1.0], COLOURS[name], marker={"symbol": "diamond", "size": 11}))
    for i, run in enumerate(data["runs"]):
        colour, steps = COLOURS[run["method"]], data["sizes"]["steps"]
        ticks = [k * steps / len(run["path"]) for k in range(len(run["path"]))]
        paths.append(line(run["method"], ticks, run["path"], colour, line={"width": 1.4}))
        height = 1 + 0.04 * (1 + i)
        along.append(dots("ends", [run["end"]], [height], colour, marker={"symbol": "x", "size": 10}))
    halves = [c["half"] for c in data["cubes"]]
    cubes = [line("least on a cube", halves, [c["lowest"] for c in data["cubes"]], GREY)]
    levels = [(at, f"least {name}") for name, at in data["minima"].items()]
    return picture(
        "Each measure along a valley of minima, and where its method ends",
        " ".join(words),
        Panel(
            "measure over its least value (crosses are ends)", "s along the manifold", "ratio", along, range_y=(0.95, 2)
        ),
        Panel("training", "step", "s", paths, across=levels),
        Panel("Det-SAM's measure by its cube", "half side of the cube", "s where it is least", cubes, "x", levels),
    )
