"""Table 1 and Examples 1 to 3 of the universal-SAM paper: closed forms, quadratures and measured values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log, pi
from typing import Any

import torch
from torch import Tensor, nn

from steppe import DETERMINANT, FROBENIUS, TRACE, Hypercube, Triple, exponential
from steppe.extend import BLUE, GREEN, GREY, ORANGE, VERMILLION
from steppe.measures import Objective, SecondOrder

from .panels import Panel, dots, line, picture
from .registry import Result, Settings

F64 = torch.float64


def closed_forms(eigenvalues: Tensor, sigma: float) -> dict[str, float]:
    """Table 1, last column: tr(H) / 2d, ||H||_F^2 (printed without the square), det(H), prod (1 - sigma lambda_i)."""
    values = eigenvalues.double()
    return {
        "trace": float(values.mean()) / 2,
        "frobenius": float(values.square().sum()),
        "determinant": float(values.prod()),
        "exponential": float((1 - sigma * values).prod()),
    }


def frob_sam_gradient(hessian: Tensor, third: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms of Frob-SAM's expected gradient at a critical point: grad ||H||_F^2, and 2 H grad tr H.

    Over strength * rho^2, up to O(rho^2): E[2 Var u] near the point is ||H||_F^2 + 2 <grad L, grad tr H> +
    2 |grad L|^2 / rho^2. The second term lies in the range of H, so along a manifold of minima, whose tangents are the
    kernel of H, it has no component.

    Parameters
    ----------
    hessian, third
        The second and third derivatives of the loss there.

    """
    return 2 * torch.einsum("ijk,jk->i", third, hessian), 2 * hessian @ torch.einsum("ijj->i", third)


# -- directions whose mean is the integral ----------------------------------------------------------------------------


def cross_points(d: int) -> Tensor:
    """The 2d points +-e_i of the unit sphere: a quadratic form has the same mean over them as over the sphere."""
    return torch.cat([torch.eye(d, dtype=F64), -torch.eye(d, dtype=F64)])


def gaussian_points(d: int) -> Tensor:
    """6^d points with the moments of N(0, I) up to the fifth: a grid of -sqrt 3, 0 (four times) and sqrt 3."""
    ticks = [-(3.0**0.5), 0.0, 0.0, 0.0, 0.0, 3.0**0.5]  # Gauss-Hermite weights 1/6, 2/3, 1/6 as multiplicities
    return torch.tensor(list(product(ticks, repeat=d)), dtype=F64)


def midpoints(d: int, half: float, points: int) -> Tensor:
    """The midpoints of equal cells of [-half, half]^d: a quadrature for functions that vanish near the boundary."""
    ticks = (torch.arange(points, dtype=F64) + 0.5) * (2 * half / points) - half
    return torch.cartesian_prod(*[ticks] * d).reshape(-1, d)


def functional(triple: Triple, hessian: Tensor, directions: Tensor) -> float:
    """A triple's phi of the mean of psi(v' H v / 2) over these directions, used for all its laws; in logs, the log.

    There is no small-sample correction, because the directions are a quadrature.
    """
    forms = ((directions @ hessian.double()) * directions).sum(1, keepdim=True) / 2
    uncorrected = replace(triple, correction=lambda n: 1.0)
    return float(uncorrected.link(uncorrected.psis(forms.expand(-1, len(triple.laws)))))


def log_determinant(hessian: Tensor, half: float, points: int) -> float:
    """The log of the third row, (2 pi)^d over the squared integral of exp(-v' H v / 2), by quadrature over a cube."""
    d = len(hessian)
    mean = functional(DETERMINANT, hessian, midpoints(d, half, points))
    return mean + d * log(2 * pi) - 2 * d * log(2 * half)


# -- Examples ---------------------------------------------------------------------------------------------------------


def saddle() -> Tensor:
    """Example 1: the Hessian of (x1^2 - x2^2) / 2, the same everywhere, with trace 0 and squared Frobenius norm 2.

    The paper argues against the trace because it is the same at all points. But a constant Hessian makes every function
    of the Hessian constant; the Frobenius norm differs only in that it is not zero, as it is for a plane.
    """
    return torch.diag(torch.tensor([1.0, -1.0], dtype=F64))


def product_hessian(x1: float, x2: float) -> Tensor:
    """Example 2: the Hessian of (x1 x2 - 1)^2, whose zero-loss manifold is x1 x2 = 1.

    Its trace changes under (k x1, x2 / k) and its determinant 4 p^2 - (4 p - 2)^2, p = x1 x2, does not (Example 3). But
    on the zero-loss manifold, where minima are compared, the determinant is 0 at every point.
    """
    corner = 4 * x1 * x2 - 2
    return torch.tensor([[2 * x2**2, corner], [corner, 2 * x1**2]], dtype=F64)


def product_determinant(x1: float, x2: float) -> float:
    """The determinant of Example 2's Hessian, a function of x1 x2 alone and 0 where x1 x2 = 1."""
    p = x1 * x2
    return 4 * p**2 - (4 * p - 2) ** 2


# -- the study --------------------------------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """The loss w' H w / 2, with initial weights `start`, 0 by default."""

    hessian: Tensor

    def __init__(self, hessian: Tensor, start: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("hessian", hessian)
        self.w = nn.Parameter(torch.zeros(len(hessian), dtype=F64) if start is None else start.clone())

    def forward(self) -> Tensor:
        return self.w @ self.hessian @ self.w / 2


def quadratic(hessian: Tensor) -> Objective:
    """The quadratic with that Hessian as an objective, for measures."""
    row = (torch.zeros(1, 1), torch.zeros(1))
    return Objective(Quadratic(hessian), lambda out, _: out, row, forward=lambda model, batch: (model(), batch[1]))


@dataclass(frozen=True)
class Sizes:
    """Sizes of `table-1`."""

    spectra: int = 10
    dimension: int = 2
    draws: int = 200
    sigma: float = -0.4  # negative, so that the integral is finite for every positive eigenvalue
    half: float = 4.0  # half side of the cube for the determinant: three standard deviations of the widest Gaussian


def random_hessian(d: int, generator: torch.Generator) -> Tensor:
    """A positive definite matrix with eigenvalues between 0.6 and 2.6 along random axes."""
    axes = torch.linalg.qr(torch.randn(d, d, dtype=F64, generator=generator)).Q
    values = 0.6 + 2 * torch.rand(d, dtype=F64, generator=generator)
    matrix: Tensor = (axes * values) @ axes.T
    return matrix


def table_1(settings: Settings) -> Result:
    """Measured values of Table 1's rows, from Hessian-vector products, against closed forms on random spectra."""
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
            estimate = SecondOrder(triple, sizes.draws).estimate(quadratic(hessian), seed=settings.seed + i)
            # triples in logs are compared as logarithms; the mean over the cube becomes an integral over all space
            volume = sizes.dimension * (log(2 * pi) - 2 * log(2 * sizes.half)) if name == "determinant" else 0.0
            value = estimate.value + volume
            closed = log(exact[name]) if triple.logs else exact[name]
            rows.append({"row": name, "spectrum": i, "closed": closed, "measured": value, "stderr": estimate.stderr})
        settings.tick(i + 1, sizes.spectra)
    within = sum(abs((r["measured"] - r["closed"]) / r["stderr"]) < 2 for r in rows)
    words = [
        f"{within} of {len(rows)} measured values lie within two standard errors of Table 1's closed form "
        f"({sizes.draws} draws, {sizes.dimension} parameters, {sizes.spectra} random spectra).",
        "The second row is the square of the Frobenius norm, not the norm as printed.",
    ]
    return Result({"rows": rows, "sizes": vars(sizes)}, _draw(rows), words)


LABELS: Mapping[str, tuple[str, str]] = {
    "trace": ("tr(H) / 2d", BLUE),
    "frobenius": ("||H||² (Frobenius)", ORANGE),
    "determinant": ("log det H", GREEN),
    "exponential": ("log Π (1 - sigma λ)", VERMILLION),
}


def _draw(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    panels = []
    for name, (label, colour) in LABELS.items():
        chosen = [r for r in rows if r["row"] == name]
        closed = [r["closed"] for r in chosen]
        bars = {"type": "data", "array": [2 * r["stderr"] for r in chosen], "thickness": 1.4}
        measured = dots("measured ± 2 standard errors", closed, [r["measured"] for r in chosen], colour, error_y=bars)
        ends = [min(closed), max(closed)]
        equal = line("equal", ends, ends, GREY, line={"dash": "dot", "width": 1.2})
        panels.append(Panel(label, "closed form", "measured", [equal, measured]))
    return picture("Table 1 of the universal-SAM paper on random spectra", *panels)
