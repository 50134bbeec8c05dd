"""Table 1 of the universal-SAM paper and its Examples 1 to 3: what the rows are worth, exactly and by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log, pi
from typing import Any

import torch
from torch import Tensor, nn

from ..core.triple import DETERMINANT, FROBENIUS, TRACE, Hypercube, Triple, exponential
from ..measures import Objective, SecondOrder
from .panels import BLUE, GREEN, ORANGE, VERMILLION, Panel, dots, line, picture
from .result import Result, Settings

F64 = torch.float64


def closed_forms(eigenvalues: Tensor, sigma: float) -> dict[str, float]:
    """Table 1's last column: tr(H) / 2d, ||H||_F^2 (printed without the square), det(H), prod (1 - sigma lambda_i)."""
    values = eigenvalues.double()
    return {
        "trace": float(values.mean()) / 2,
        "frobenius": float(values.square().sum()),
        "determinant": float(values.prod()),
        "exponential": float((1 - sigma * values).prod()),
    }


# -- directions whose plain mean is the integral ----------------------------------------------------------------------


def crosses(d: int) -> Tensor:
    """The 2d points +-e_i of the unit sphere: a quadratic form has the same mean over them as over the sphere."""
    return torch.cat([torch.eye(d, dtype=F64), -torch.eye(d, dtype=F64)])


def gaussian_points(d: int) -> Tensor:
    """6^d points with all moments of N(0, I) up to the fifth: every coordinate is -sqrt 3, four times 0, sqrt 3."""
    ticks = [-(3.0**0.5), 0.0, 0.0, 0.0, 0.0, 3.0**0.5]  # Gauss-Hermite's weights 1/6, 2/3, 1/6 as counts
    return torch.tensor(list(product(ticks, repeat=d)), dtype=F64)


def lattice(d: int, half: float, points: int) -> Tensor:
    """The midpoints of equal cells of [-half, half]^d: over them the mean of what fades in time is its integral."""
    ticks = (torch.arange(points, dtype=F64) + 0.5) * (2 * half / points) - half
    return torch.cartesian_prod(*[ticks] * d).reshape(-1, d)


def over(triple: Triple, hessian: Tensor, directions: Tensor) -> float:
    """A triple's phi of the mean of psi(v' H v / 2) over given directions, all laws of the triple seeing the same ones.

    The factor for small samples is left out, because the directions are an integral; in logs, the logarithm.
    """
    forms = ((directions @ hessian.double()) * directions).sum(1, keepdim=True) / 2
    whole = replace(triple, correction=lambda n: 1.0)
    return float(whole.link(whole.psis(forms.expand(-1, len(triple.laws)))))


def log_determinant(hessian: Tensor, half: float, points: int) -> float:
    """The log of the third row: (2 pi)^d over the squared integral of exp(-v' H v / 2), over a cube of a lattice."""
    d = len(hessian)
    mean = over(DETERMINANT, hessian, lattice(d, half, points))
    return mean + d * log(2 * pi) - 2 * d * log(2 * half)


# -- Examples ---------------------------------------------------------------------------------------------------------


def saddle() -> Tensor:
    """Example 1: the Hessian of (x1^2 - x2^2) / 2, the same everywhere, of trace 0 and squared norm 2.

    That all points look equally flat is said against the trace; but a constant Hessian makes every function of the
    Hessian constant, those of this paper too. What tells Frobenius apart is that it is not that of a plane.
    """
    return torch.diag(torch.tensor([1.0, -1.0], dtype=F64))


def product_hessian(x1: float, x2: float) -> Tensor:
    """Example 2: the Hessian of (x1 x2 - 1)^2, whose zero-loss manifold is x1 x2 = 1.

    Its trace grows under (k x1, x2 / k) and its determinant 4 p^2 - (4 p - 2)^2, p = x1 x2, does not (Example 3), but
    on the zero-loss manifold, where minima are compared, the determinant is 0 at every point.
    """
    corner = 4 * x1 * x2 - 2
    return torch.tensor([[2 * x2**2, corner], [corner, 2 * x1**2]], dtype=F64)


def product_determinant(x1: float, x2: float) -> float:
    """The determinant of Example 2's Hessian, a function of x1 x2 alone and 0 where x1 x2 = 1."""
    p = x1 * x2
    return 4 * p**2 - (4 * p - 2) ** 2


# -- the study --------------------------------------------------------------------------------------------------------


class Bowl(nn.Module):
    """w' H w / 2, from weights 0 or from a start."""

    hessian: Tensor

    def __init__(self, hessian: Tensor, start: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("hessian", hessian)
        self.w = nn.Parameter(torch.zeros(len(hessian), dtype=F64) if start is None else start.clone())

    def forward(self) -> Tensor:
        return self.w @ self.hessian @ self.w / 2


def bowl(hessian: Tensor) -> Objective:
    """A quadratic with that Hessian, as an objective that any measure takes."""
    row = (torch.zeros(1, 1), torch.zeros(1))
    return Objective(Bowl(hessian), lambda out, _: out, row, forward=lambda model, batch: (model(), batch[1]))


@dataclass(frozen=True)
class Sizes:
    """How many spectra, of how many eigenvalues, and how they are measured."""

    spectra: int = 10
    dimension: int = 2
    draws: int = 200
    sigma: float = -0.4  # negative, so that the integral is finite for every positive eigenvalue
    half: float = 4.0  # of the cube for the determinant's row: three standard deviations of the widest Gaussian


def random_hessian(d: int, generator: torch.Generator) -> Tensor:
    """A positive definite matrix with eigenvalues between 0.6 and 2.6 along random axes."""
    axes = torch.linalg.qr(torch.randn(d, d, dtype=F64, generator=generator)).Q
    values = 0.6 + 2 * torch.rand(d, dtype=F64, generator=generator)
    matrix: Tensor = (axes * values) @ axes.T
    return matrix


def table_1(settings: Settings) -> Result:
    """Measured values of Table 1's rows, from products with the Hessian, against closed forms on random spectra."""
    sizes = settings.of(Sizes(), spectra=2, draws=60)
    generator = torch.Generator().manual_seed(settings.seed)
    triples = {
        "trace": TRACE,
        "frobenius": FROBENIUS,
        "determinant": replace(DETERMINANT, laws=(Hypercube(sizes.half),)),
        "exponential": exponential(sizes.sigma),
    }
    rows: list[dict[str, Any]] = []
    for i in range(sizes.spectra):
        hessian = random_hessian(sizes.dimension, generator)
        exact = closed_forms(torch.linalg.eigvalsh(hessian), sizes.sigma)
        for name, triple in triples.items():
            found = SecondOrder(triple, sizes.draws).estimate(bowl(hessian), seed=settings.seed + i)
            # rows in logs are compared as logarithms; the cube stands for all of space
            space = sizes.dimension * (log(2 * pi) - 2 * log(2 * sizes.half)) if name == "determinant" else 0.0
            value = found.value + space
            closed = log(exact[name]) if triple.logs else exact[name]
            rows.append({"row": name, "spectrum": i, "closed": closed, "measured": value, "stderr": found.stderr})
        settings.tick(i + 1, sizes.spectra)
    off = [(r["measured"] - r["closed"]) / r["stderr"] for r in rows]
    within = sum(abs(z) < 2 for z in off)
    words = [
        f"{within} of {len(rows)} measured values lie within two standard errors of Table 1's closed form "
        f"({sizes.draws} draws, {sizes.dimension} parameters, {sizes.spectra} random spectra).",
        "The second row is the square of the Frobenius norm, not the norm as printed.",
    ]
    return Result({"rows": rows, "sizes": vars(sizes)}, _draw(rows, words), words)


LABELS: Mapping[str, tuple[str, str]] = {
    "trace": ("tr(H) / 2d", BLUE),
    "frobenius": ("||H||² (Frobenius)", ORANGE),
    "determinant": ("log det H", GREEN),
    "exponential": ("log Π (1 - sigma λ)", VERMILLION),
}


def _draw(rows: Sequence[Mapping[str, Any]], words: Sequence[str]) -> dict[str, Any]:
    panels = []
    for name, (label, colour) in LABELS.items():
        chosen = [r for r in rows if r["row"] == name]
        closed = [r["closed"] for r in chosen]
        bars = {"type": "data", "array": [2 * r["stderr"] for r in chosen], "thickness": 1.4}
        measured = dots("measured ± 2 standard errors", closed, [r["measured"] for r in chosen], colour, error_y=bars)
        ends = [min(closed), max(closed)]
        equal = line("equal", ends, ends, "#5F6368", line={"dash": "dot", "width": 1.2})
        panels.append(Panel(label, "closed form", "measured", [equal, measured]))
    return picture("Table 1 of the universal-SAM paper on random spectra", " ".join(words), *panels)
