"""Theorems 6 and 7 of the universal-SAM paper as computations: what their constructions give, and what they cost.

Theorem 6 takes d integrals of exp(sigma v' H v / 2), Theorem 7 the form v' H v at d (d + 1) / 2 points. Both are exact;
the first solves a Vandermonde system and finds roots, which multiplies the errors of its integrals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import cos, fsum, pi, prod, sqrt
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from steppe import Vector
from steppe.extend import BLUE, GREEN, IN_TURN, ORANGE
from steppe.measures import Curvature, Dense, Objective

from .constructions import exponential_integrals, hessian_from_point_masses, spectrum_from_exponentials
from .panels import Panel, line, picture
from .registry import Result, Settings
from .small_radius import at_minimum, descend, images

F64 = torch.float64
BLOCK = 7  # rows of the Hessian whose permanent is computed
INTERVAL = 0.45  # of sigma: eigenvalues are at most 1, and exp(sigma v' H v / 2) has a variance for sigma < 1/2


@dataclass(frozen=True)
class Sizes:
    """Sizes of `universality`."""

    dimensions: tuple[int, ...] = (2, 4, 6, 8, 12, 16)
    spectra: int = 50
    noise: float = 1e-6  # relative, of the integrals
    sampled: tuple[int, ...] = (1, 2, 3, 4)  # numbers of weights with sampled integrals
    draws: tuple[int, ...] = (1_000, 10_000, 100_000)
    repeats: int = 40
    rows: int = 20
    width: int = 2  # of the network whose Hessian Theorem 7 finds
    pixels: int = 4
    radii: int = 13


def nodes(d: int) -> list[float]:
    """Different sigmas, d of them and none 0: Chebyshev's points of the interval."""
    points = d if d % 2 == 0 else d + 1  # an odd number has 0 among them
    return [INTERVAL * cos((2 * i + 1) * pi / (2 * points)) for i in range(d)]


def permanent(matrix: Tensor) -> float:
    """The paper's example of a function of the Hessian that is hard to compute: a sum over d! permutations."""
    rows = matrix.tolist()
    return fsum(prod(row[i] for row, i in zip(rows, p, strict=True)) for p in permutations(range(len(rows))))


def sampled_integrals(spectrum: Tensor, sigmas: Sequence[float], draws: int, generator: torch.Generator) -> Tensor:
    """Means of exp(sigma v' H v / 2) over the same Gaussian draws for every sigma."""
    forms = torch.randn(draws, len(spectrum), dtype=F64, generator=generator).square() @ spectrum / 2
    return torch.stack([(s * forms).exp().mean() for s in sigmas])


def root_mean_square(errors: Sequence[float]) -> tuple[float, float]:
    """The root of the mean square and its standard error."""
    squares = [e * e for e in errors]
    value = sqrt(fmean(squares))
    return value, stdev(squares) / sqrt(len(squares)) / (2 * value)


def small_network(sizes: Sizes, seed: int) -> Objective:
    """A trained network with few weights, as an objective with a minimum exactly there."""
    x, y = images(sizes.rows)
    x = x[:, 27 : 27 + sizes.pixels]  # pixels of the middle
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(sizes.pixels, sizes.width), nn.Tanh(), nn.Linear(sizes.width, 2)).double()
    descend(model, x, y % 2, 200)
    return at_minimum(model, x)


def vector(objective: Objective, v: Tensor) -> Vector:
    """A flat direction in the shapes of the weights."""
    params = objective.space.params
    parts = torch.split(v, [p.numel() for p in params])
    return objective.space.vector([part.view_as(p) for part, p in zip(parts, params, strict=True)])


def universality(settings: Settings) -> Result:
    """Eigenvalues from d integrals (Theorem 6), a Hessian from d (d + 1) / 2 numbers (Theorem 7), and their errors."""
    sizes = settings.of(Sizes(), dimensions=(2, 4), spectra=5, sampled=(1, 2), draws=(100, 1000), repeats=5, radii=3)
    generator = torch.Generator().manual_seed(settings.seed)
    exact = []
    for d in sizes.dimensions:
        sigmas = nodes(d)
        errors: list[float] = []
        noisy: list[float] = []
        for _ in range(sizes.spectra):
            spectrum = (2 * torch.rand(d, dtype=F64, generator=generator) - 1).sort().values
            integrals = exponential_integrals(spectrum, sigmas)
            disturbed = integrals * (1 + sizes.noise * torch.randn(d, dtype=F64, generator=generator))
            for values, of in ((integrals, errors), (disturbed, noisy)):
                of.append(float((spectrum_from_exponentials(values, sigmas) - spectrum).abs().max()))
        exact.append({"d": d, "largest": max(errors), "median_noisy": sorted(noisy)[len(noisy) // 2]})
    sampled = []
    for d in sizes.sampled:
        spectrum = torch.linspace(-1, 1, d + 2, dtype=F64)[1:-1] if d > 1 else torch.tensor([0.5], dtype=F64)
        for n in sizes.draws:
            found = [
                spectrum_from_exponentials(sampled_integrals(spectrum, nodes(d), n, generator), nodes(d))
                for _ in range(sizes.repeats)
            ]
            value, error = root_mean_square([float((f - spectrum).square().mean().sqrt()) for f in found])
            sampled.append({"d": d, "draws": n, "error": value, "stderr": error})
        settings.tick(len(sampled), len(sizes.sampled) * len(sizes.draws))
    point_masses = _theorem_7(sizes, settings.seed)
    few, many = exact[0], exact[-1]
    last = [row for row in sampled if row["draws"] == sizes.draws[-1]]
    words = [
        f"Theorem 6: from exact integrals, the eigenvalues of {sizes.spectra} random spectra in [-1, 1] come back "
        f"within {few['largest']:.1g} for d = {few['d']} and {many['largest']:.1g} for d = {many['d']}; a relative "
        f"error of {sizes.noise:g} in the integrals becomes {few['median_noisy']:.1g} and "
        f"{many['median_noisy']:.1g} (medians).",
        f"From {sizes.draws[-1]} Gaussian draws, the root mean square error of the eigenvalues is "
        + ", ".join(f"{r['error']:.2g} ± {r['stderr']:.1g} for d = {r['d']}" for r in last)
        + f" ({sizes.repeats} repetitions).",
        *point_masses.pop("words"),
    ]
    data = {"exact": exact, "sampled": sampled, "point_masses": point_masses, "sizes": vars(sizes)}
    return Result(data | {"seed": settings.seed}, _draw(data), words)


def _theorem_7(sizes: Sizes, seed: int) -> dict[str, Any]:
    """The Hessian of a network from products, and from losses at a radius alone; the permanent of a block of it."""
    objective = small_network(sizes, seed)
    curvature = Curvature(objective)
    d, dense = objective.dimension, Dense(curvature).matrix
    here = objective.loss()

    def form(v: Tensor) -> float:
        at = vector(objective, v)
        return float(at.dot(curvature.product(at)))

    def from_losses(v: Tensor, rho: float) -> float:
        return 2 * (objective.loss(vector(objective, rho * v)) - here) / rho**2

    again = hessian_from_point_masses(form, d)
    truth, found = permanent(dense[:BLOCK, :BLOCK]), permanent(again[:BLOCK, :BLOCK])
    radii = torch.logspace(-7, -1, sizes.radii, dtype=F64).tolist()
    errors = []
    for rho in radii:
        measured = hessian_from_point_masses(partial(from_losses, rho=rho), d)
        errors.append(float((measured - dense).abs().max() / dense.abs().max()))
    best = min(range(len(radii)), key=errors.__getitem__)
    words = [
        f"Theorem 7: {d * (d + 1) // 2} values of v' H v give the Hessian of a network with {d} weights within "
        f"{float((again - dense).abs().max()):.1g}, and the permanent of a block of {BLOCK} x {BLOCK}, the paper's "
        f"example of a function that is hard to compute, within {abs(found / truth - 1):.1g} of itself. From losses "
        f"alone, at a minimum, the relative error is {errors[best]:.1g} at the best radius, {radii[best]:.1g}, and "
        f"{errors[-1]:.2g} at radius {radii[-1]:g}.",
    ]
    return {"d": d, "radii": radii, "errors": errors, "words": words}


def _draw(data: dict[str, Any]) -> dict[str, Any]:
    dims = [r["d"] for r in data["exact"]]
    theorem_6 = [
        line("exact integrals", dims, [r["largest"] for r in data["exact"]], BLUE),
        line("integrals with noise", dims, [r["median_noisy"] for r in data["exact"]], ORANGE),
    ]
    by_draws = []
    for d, colour in zip(dict.fromkeys(r["d"] for r in data["sampled"]), IN_TURN, strict=False):
        rows = [r for r in data["sampled"] if r["d"] == d]
        bars = {"type": "data", "array": [2 * r["stderr"] for r in rows], "thickness": 1.4}
        by_draws.append(line(f"d = {d}", [r["draws"] for r in rows], [r["error"] for r in rows], colour, error_y=bars))
    masses = data["point_masses"]
    from_losses = [line("from losses", masses["radii"], masses["errors"], GREEN)]
    return picture(
        "Theorems 6 and 7 of the universal-SAM paper as computations",
        Panel("Theorem 6", "number of weights", "error of eigenvalues", theorem_6, "y", powers=3),
        Panel("Theorem 6, sampled", "draws", "", by_draws, "xy", across=((1.0, "the range of the eigenvalues"),)),
        Panel("Theorem 7", "radius", "relative error of the Hessian", from_losses, "xy", powers=2),
    )
