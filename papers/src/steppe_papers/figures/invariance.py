"""Figure 2, Examples 1 to 3 and Theorems 10 and 11 of the universal-SAM paper, and where their conditions hold.

Theorem 10's measures f(v_1 ... v_d) dv are all infinite for d > 1: in the coordinates p = v_1 ... v_d and log |v_i| the
integrand does not depend on the second ones. No probability measure is among them, and none can be sampled. And the
rescaling of a hidden unit with a weights in and b weights out has determinant k^(a - b), which is 1 for a = b alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, log, pi, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from steppe import FROBENIUS
from steppe.extend import BLUE, GREEN, GREY, IN_TURN, ORANGE
from steppe.measures import Curvature, Dense, Objective

from .panels import Panel, line, picture
from .registry import Result, Settings
from .universal import (
    closed_forms,
    functional,
    gaussian_points,
    midpoints,
    product_determinant,
    product_hessian,
    saddle,
)

F64 = torch.float64
SWAP = torch.tensor([[0.0, 2.0], [0.5, 0.0]], dtype=F64)  # its own inverse, not orthogonal: (x1, x2) -> (2 x2, x1 / 2)
SPREAD = torch.tensor([2.0, 1.0], dtype=F64)  # of the Gaussian that the swap leaves as it is


@dataclass(frozen=True)
class Sizes:
    """Sizes of `invariance`."""

    product: float = 0.8  # x1 x2 in Example 2; between 1/3 and 1 the Hessian is positive definite
    largest: float = 10.0  # k
    scales: int = 41
    halves: tuple[float, ...] = (0.01, 1.0, 5.0)  # half sides of the cube of Det-SAM
    points: int = 400  # per axis
    networks: int = 5


def swapped_loss(x: Tensor) -> Tensor:
    """A loss that is the same at x and at `SWAP` x: a symmetric function of x1 / 2 and x2."""
    u, v = x[0] / 2, x[1]
    return u**4 + v**4 + 3 * u * v * (u + v) + (u * v) ** 2


def mass(side: float, points: int = 2000) -> float:
    """The mass of exp(-(v1 v2)^2) dv, one of Theorem 10's measures, on the square [-side, side]^2.

    It is 2 sqrt(pi) times the integral of erf(s) / s from 0 to side^2, which grows by log 4 when the side doubles.
    """
    end = min(side**2, 6.0)  # from there on, erf is 1 in double precision
    width = end / points
    body = sum(erf(s) / s * width for s in ((i + 0.5) * width for i in range(points)))
    return 2 * sqrt(pi) * (body + log(side**2 / end))


def on_a_cube(hessian: Tensor, half: float, points: int) -> float:
    """Det-SAM's measure on a cube: minus twice the logarithm of the mean of exp(-v' H v / 2) over it."""
    v = midpoints(2, half, points)
    return float(-2 * ((-((v @ hessian) * v).sum(1) / 2).logsumexp(0) - log(len(v))))


def rescaled_unit(inputs: int, hidden: int, outputs: int, bias: bool, k: float, seed: int) -> tuple[float, float]:
    """det(D) of the rescaling of one hidden unit of a leaky ReLU network, and det(H) at D x over det(H) at x."""
    torch.manual_seed(seed)
    first, last = nn.Linear(inputs, hidden, bias=bias), nn.Linear(hidden, outputs, bias=bias)
    model = nn.Sequential(first, nn.LeakyReLU(), last).double()
    x = torch.randn(40, inputs, dtype=F64)
    objective = Objective(model, nn.functional.mse_loss, (x, torch.randn(40, outputs, dtype=F64)))
    before = torch.linalg.slogdet(Dense(Curvature(objective)).matrix)
    with torch.no_grad():
        first.weight[0] *= k
        last.weight[:, 0] /= k
        if bias:
            first.bias[0] *= k
    after = torch.linalg.slogdet(Dense(Curvature(objective)).matrix)
    ratio = float(before.sign * after.sign * (after.logabsdet - before.logabsdet).exp())
    return k ** (inputs + bias - outputs), ratio


def _along_the_orbit(sizes: Sizes) -> dict[str, Any]:
    """Example 2: trace, largest eigenvalue, determinant and Det-SAM's measure on cubes at (k x1, x2 / k)."""
    root = sqrt(sizes.product)
    scales = torch.logspace(0, torch.tensor(sizes.largest).log10().item(), sizes.scales, dtype=F64).tolist()
    curves: dict[str, list[float]] = {"trace": [], "lambda_max": [], "determinant": []}
    for k in scales:
        hessian = product_hessian(k * root, root / k)
        curves["trace"].append(float(hessian.trace()))
        curves["lambda_max"].append(float(torch.linalg.eigvalsh(hessian)[-1]))
        curves["determinant"].append(float(torch.linalg.det(hessian)))
        for half in sizes.halves:
            value = on_a_cube(hessian, half, sizes.points)
            curves.setdefault(f"cube {half:g}", []).append(value)
    return {"scales": scales, "curves": curves, "determinant": product_determinant(root, root)}


def _under_a_swap() -> dict[str, Any]:
    """Theorem 11 for a group of two elements that are not orthogonal."""
    x = torch.tensor([0.7, -0.4], dtype=F64)
    here, there = (torch.func.hessian(swapped_loss)(at) for at in (x, SWAP @ x))
    inverse = torch.linalg.inv(SWAP)
    laws: dict[str, Callable[[Tensor], Tensor]] = {"invariant": lambda v: v * SPREAD, "standard": lambda v: v}
    values = {
        name: [functional(FROBENIUS, h, law(gaussian_points(2))) for h in (here, there)] for name, law in laws.items()
    }
    return {
        "values": values,
        "correct": float((inverse.T @ here @ inverse - there).abs().max()),
        "printed": float((inverse @ here @ inverse - there).abs().max()),
    }


def invariance(settings: Settings) -> Result:
    """Which measures see a change of scale that the loss does not see, and which rescalings the theorems cover."""
    sizes = settings.of(Sizes(), scales=5, points=40, networks=1)
    flat = closed_forms(torch.linalg.eigvalsh(saddle()), 0.1)
    integrals = {
        half: on_a_cube(saddle(), half, sizes.points) + 2 * log(2 * pi) - 4 * log(2 * half) for half in (2.0, 4.0, 8.0)
    }
    orbit, swap = _along_the_orbit(sizes), _under_a_swap()
    settings.tick(1, 2)
    shapes = ((2, 3, 1, True), (3, 3, 1, False), (2, 3, 2, False))
    networks: list[dict[str, Any]] = []
    for inputs, hidden, outputs, bias in shapes:
        for i in range(sizes.networks):
            det_d, ratio = rescaled_unit(inputs, hidden, outputs, bias, 2.0, settings.seed + i)
            shape = f"{inputs}-{hidden}-{outputs}{' with biases' if bias else ''}"
            networks.append({"network": shape, "det_D": det_d, "ratio": ratio})
    settings.tick(2, 2)
    masses = {side: mass(float(side)) for side in (1, 10, 100, 1000)}
    curves = orbit["curves"]
    cubes = "; ".join(
        f"on the cube of half side {half:g} from {c[0]:.3g} to {c[-1]:.3g} (a factor of {c[-1] / c[0]:.1f})"
        for half, c in ((h, curves[f"cube {h:g}"]) for h in sizes.halves)
    )
    furthest = max(abs(d / orbit["determinant"] - 1) for d in curves["determinant"])
    of_d = {n["network"]: n["det_D"] for n in networks}
    worst = max(abs(n["ratio"] * n["det_D"] ** 2 - 1) for n in networks)
    (a, b), (c, d) = swap["values"]["invariant"], swap["values"]["standard"]
    words = [
        f"Example 1, at every point: tr = {flat['trace']:g}, ||H||_F^2 = {flat['frobenius']:g} and det = "
        f"{flat['determinant']:g}. The integral of Table 1's third row diverges there: the logarithm of (2 pi)^d over "
        f"its square is {', '.join(f'{v:.3g} (half side {h:g})' for h, v in integrals.items())}.",
        f"Example 2 at x1 x2 = {sizes.product:g}, from k = 1 to {sizes.largest:g}: the trace grows by a factor of "
        f"{curves['trace'][-1] / curves['trace'][0]:.1f}, the determinant stays {orbit['determinant']:.3g} within "
        f"{furthest:.1g}. Det-SAM's measure, a logarithm, goes {cubes}.",
        "Theorem 10 and Example 3: rescaling a hidden unit by 2 has det(D) = "
        f"{', '.join(f'{v:g} ({name})' for name, v in of_d.items())}; the determinant of the Hessian is multiplied by "
        f"det(D)^-2 within {worst:.1g} ({len(networks)} networks).",
        "Theorem 10: the mass of exp(-(v1 v2)^2) dv on squares of half side 1, 10, 100 and 1000 is "
        f"{', '.join(f'{m:.1f}' for m in masses.values())}.",
        f"Theorem 11: with the invariant Gaussian ||H||_F^2 becomes {a:.4g} at x and {b:.4g} at A x; with the standard "
        f"one {c:.4g} and {d:.4g}. The Hessian at A x differs from A^-T H A^-1 by {swap['correct']:.1g}, from A^-1 H "
        f"A^-1, as printed, by {swap['printed']:.3g}.",
    ]
    data = {
        "saddle": flat, "integrals": integrals, "orbit": orbit, "networks": networks, "masses": masses, "swap": swap,
        "sizes": vars(sizes), "seed": settings.seed,
    }  # fmt: skip
    return Result(data, _draw(data), words)


def _draw(data: dict[str, Any]) -> dict[str, Any]:
    ticks = torch.linspace(-2, 2, 41, dtype=F64)
    saddle_lines = []
    for level, colour in zip((-1.0, 0.0, 1.0, 2.0), IN_TURN, strict=False):
        x2 = (ticks.square() - 2 * level).clamp(min=0).sqrt()
        keep = ticks.square() >= 2 * level
        x = torch.cat([ticks[keep], ticks[keep].flip(0)])
        saddle_lines.append(line(f"L = {level:g}", x, torch.cat([x2[keep], -x2[keep].flip(0)]), colour))
    scales, curves = data["orbit"]["scales"], data["orbit"]["curves"]
    exact = [
        line(name, scales, curves[key], colour)
        for name, key, colour in (
            ("trace", "trace", BLUE),
            ("λ max", "lambda_max", ORANGE),
            ("determinant", "determinant", GREEN),
        )
    ]
    cubes = [
        line(f"half side {name.split()[1]}", scales, [v - of[0] for v in of], colour)
        for (name, of), colour in zip([(n, c) for n, c in curves.items() if "cube" in n], IN_TURN, strict=False)
    ]
    logs = [log(abs(d / curves["determinant"][0])) for d in curves["determinant"]]
    cubes.append(line("log det", scales, logs, GREY, line={"dash": "dot"}))
    return picture(
        "Scale and sharpness: Figure 2 and Examples 1 to 3 of the universal-SAM paper",
        Panel("Figure 2: (x1² - x2²) / 2", "x1", "x2", saddle_lines),
        Panel("Example 2 at (k x1, x2 / k)", "k", "", exact, "xy"),
        Panel("Det-SAM's measure there, rise", "k", "", cubes, "x"),
    )
