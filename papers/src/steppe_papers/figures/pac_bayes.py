"""Agnostic-SAM's Theorem 1: a bound on the true loss minus the worst empirical loss in a ball.

With probability 1 - delta over N rows, for a loss between 0 and L and k weights whose true loss does not decrease on
average under Gaussian noise: L_D(w) <= max over |w' - w| <= rho of L_S(w'), plus a gap. The theorem's statement and its
proof disagree on the gap (the statement lacks a root and has rho where the proof has rho^2), and the proof hides
constants in O(1). This module has all versions, with all constants, and samples for which the bound says something.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, exp, floor, inf, log, log1p, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from steppe.extend import BLUE, GREEN, GREY, ORANGE, VERMILLION

from .panels import Panel, line, picture
from .registry import Result, Settings


@dataclass(frozen=True)
class Setting:
    """The quantities that the bound depends on.

    Parameters
    ----------
    norm
        The norm of the weights.
    rho
        The radius of the ball.
    weights, rows
        The number of weights k and of rows N.
    delta
        The probability that the bound fails.
    largest
        The upper bound L of the loss.

    """

    norm: float
    rho: float
    weights: int
    rows: int
    delta: float = 0.05
    largest: float = 1.0

    def __post_init__(self) -> None:
        good = self.norm >= 0 and self.rho > 0 and self.weights >= 1 and self.rows >= 2 and 0 < self.delta <= 1
        if not good or not self.largest > 0:
            raise ValueError(
                "the bound needs norm >= 0, rho > 0, at least one weight and two rows, 0 < delta <= 1 and largest > 0, "
                f"not {self}"
            )

    @property
    def noise(self) -> float:
        """The scale of the noise, rho / (sqrt k + sqrt log N): it leaves the ball with probability N^-1/2 at most."""
        return self.rho / (sqrt(self.weights) + sqrt(log(self.rows)))

    @property
    def relative_norm(self) -> float:
        """||w||^2 / (k sigma^2) = ||w||^2 / rho^2 (1 + sqrt(log N / k))^2."""
        return (self.norm / self.rho * (1 + sqrt(log(self.rows) / self.weights))) ** 2


def proof_gap(s: Setting, constant: float = 0.0) -> float:
    """4 L / sqrt N [sqrt(k log(1 + ||w||^2 / rho^2 (1 + sqrt(log N / k))^2)) + 2 sqrt(log((N + k) / delta)) + O(1)].

    The last line of the proof. O(1) is `constant`; 0 is large enough, because `explicit_gap` is never larger.
    """
    first = sqrt(s.weights * log1p(s.relative_norm))
    return 4 * s.largest / sqrt(s.rows) * (first + 2 * sqrt(log((s.rows + s.weights) / s.delta)) + constant)


def printed_gap(s: Setting, constant: float = 0.0) -> float:
    """The gap in the statement (eq. 2): k log(1 + ||w||^2 / rho (1 + sqrt(log N / k))), without a root or a square."""
    first = s.weights * log1p(s.norm**2 / s.rho * (1 + sqrt(log(s.rows) / s.weights)))
    return 4 * s.largest / sqrt(s.rows) * (first + 2 * sqrt(log((s.rows + s.weights) / s.delta)) + constant)


def explicit_gap(s: Setting) -> float:
    """The gap before the proof rounds it up: L / (2 sqrt N) sqrt(1 + k log(1 + .) + 2 log(pi^2 / 6 delta)
    + 4 log(1 + k + 4 N)) + L / sqrt N.

    One line of the proof omits a factor 2 before the last logarithm; later lines have it again.
    """
    norm_term = 1 + s.weights * log1p(s.relative_norm)
    inside = norm_term + 2 * log(pi**2 / (6 * s.delta)) + 4 * log(1 + s.weights + 4 * s.rows)
    return s.largest / sqrt(s.rows) * (sqrt(inside) / 2 + 1)


def prior(s: Setting) -> tuple[int, float]:
    """The index j and the variance of the prior N(0, c exp((1 - j) / k) I) that the proof chooses for these weights.

    The union is over j = 1, 2, ... and needs no smaller j: above ||w||^2 = k sigma^2 exp(4N / k) the gap exceeds L.
    Eq. 10 of the proof lacks that factor k.
    """
    power = 4 * s.rows / s.weights
    log_c = log1p(exp(-power)) + power  # log(c / sigma^2), without overflow
    j = floor(1 - s.weights * (log1p(s.relative_norm) - log_c))
    if j < 1:
        return j, inf
    return j, s.noise**2 * exp(log_c + (1 - j) / s.weights)


def divergence(s: Setting, variance: float) -> float:
    """KL(N(w, sigma^2 I) || N(0, variance I)) = (k sigma^2 / v + ||w||^2 / v - k + k log(v / sigma^2)) / 2."""
    ratio = s.noise**2 / variance
    return (s.weights * (ratio - 1 - log(ratio)) + s.norm**2 / variance) / 2


def prior_gap(s: Setting) -> float:
    """The gap from the chosen prior itself, its divergence and its share of delta; infinite if there is no prior.

    Catoni's bound holds for a beta chosen before the data; the proof, and this function, use the best beta for the
    weights. A grid over beta, or Maurer's form of the bound, would add another log N.
    """
    j, variance = prior(s)
    if variance == inf:
        return inf
    share = log(1 / s.delta) + log(pi**2 / 6) + 2 * log(j)
    return s.largest * (sqrt((divergence(s, variance) + share) / (2 * s.rows)) + 1 / sqrt(s.rows))


def rows_needed(s: Setting, gap: float) -> int:
    """The smallest number of rows for which `explicit_gap` is at most `gap`, all else equal."""
    return bisect_left(range(10**18), True, lo=2, key=lambda rows: explicit_gap(replace(s, rows=rows)) <= gap)


# -- the study --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of `generalisation-bound`; the first three are those of a ResNet-18 on CIFAR-10."""

    norm: float = 50.0
    network: int = 11_173_962
    radius: float = 0.1
    weights: int = 2  # of the simulation, where rows are standard Gaussian vectors
    rows: tuple[int, ...] = (100, 1000, 10_000)
    samples: int = 1000
    delta: float = 0.05


def bounded_loss(x: Tensor, w: Tensor) -> Tensor:
    """1 - exp(-|x - w|^2 / 2), a loss between 0 and 1."""
    return 1 - (-(x - w).square().sum(-1) / 2).exp()


def true_loss(norm: float, weights: int, noise: float = 0.0) -> float:
    """The mean of `bounded_loss` over standard Gaussian rows, and over Gaussian noise in the weights."""
    spread = 2 + noise**2
    return 1 - exp(-weights / 2 * log(spread) - norm**2 / (2 * spread))


def highest_rate(failures: int, n: int) -> float:
    """The one-sided 95 % upper limit (Clopper and Pearson) of a probability of which n trials showed some failures."""

    def unlikely(p: int) -> bool:
        q = p / 10**6
        return sum(comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(failures + 1)) <= 0.05

    return bisect_left(range(10**6), True, key=unlikely) / 10**6


def _differences(sizes: Sizes, rows: int, generator: torch.Generator) -> list[tuple[float, float]]:
    """For every sample, the norm of the trained weights, and their true loss minus the worst held-out loss in the ball.

    The worst loss is the highest at 16 points of the ball's surface, so that differences are rather too large.
    """
    found = []
    for _ in range(sizes.samples):
        trained, held_out = torch.randn(2, rows, sizes.weights, dtype=torch.float64, generator=generator)
        w = trained.mean(0)  # of two weights or more the best place, up to the sample's asymmetry
        ring = torch.randn(16, sizes.weights, dtype=torch.float64, generator=generator)
        ring *= sizes.radius / ring.norm(dim=1, keepdim=True)
        worst = float(bounded_loss(held_out[:, None], w + ring).mean(0).max())
        norm = float(w.norm())
        found.append((norm, true_loss(norm, sizes.weights) - worst))
    return found


def generalisation_bound(settings: Settings) -> Result:
    """Theorem 1 of Agnostic-SAM: its gap as printed and proved, and how often samples exceed it."""
    sizes = settings.of(Sizes(), rows=(100, 1000), samples=100)
    network = Setting(sizes.norm, sizes.radius, sizes.network, 50_000, sizes.delta)
    counts = [round(10 ** (k / 4)) for k in range(12, 45)]
    gaps = {
        name: [of(replace(network, rows=n)) for n in counts]
        for name, of in (("printed", printed_gap), ("proof", proof_gap), ("explicit", explicit_gap))
    }
    generator = torch.Generator().manual_seed(settings.seed)
    simulated = []
    for done, rows in enumerate(sizes.rows, start=1):
        found = _differences(sizes, rows, generator)
        of_each = [Setting(norm, sizes.radius, sizes.weights, rows, sizes.delta) for norm, _ in found]
        covered = sum(  # the bound assumes that noise does not lower the true loss
            true_loss(s.norm, s.weights, s.noise) >= true_loss(s.norm, s.weights) for s in of_each
        )
        failures = sum(d > explicit_gap(s) for s, (_, d) in zip(of_each, found, strict=True))
        differences = sorted(d for _, d in found)
        simulated.append({
            "rows": rows, "gap": max(map(explicit_gap, of_each)), "needed": differences[int(0.95 * len(found))],
            "largest": differences[-1], "failures": failures, "covered": covered, "samples": len(found),
            "rate_at_most": highest_rate(failures, len(found)),
        })  # fmt: skip
        settings.tick(done, len(sizes.rows))
    words = [
        f"A ResNet-18 on CIFAR-10 (||w|| = {sizes.norm:g}, rho = {sizes.radius:g}, {network.rows} rows): the gap is "
        f"{printed_gap(network):.1e} as printed, {proof_gap(network):.0f} by the last line of the proof and "
        f"{explicit_gap(network):.1f} with all constants, for a loss below 1; {rows_needed(network, 0.5):.1e} rows "
        "bring it to 0.5.",
        *(
            f"{r['samples']} samples of {r['rows']} rows and {sizes.weights} weights: the gap is at most "
            f"{r['gap']:.3f}, and 95 % of the samples need {r['needed']:.4f} at most, the worst one "
            f"{r['largest']:.4f}. It fails {r['failures']} times, where {sizes.delta:g} of them may: the rate is at "
            f"most {r['rate_at_most']:.4f} (95 % limit). {r['covered']} samples satisfy the theorem's condition."
            for r in simulated
        ),
    ]
    data = {"rows": counts, "gaps": gaps, "simulated": simulated, "sizes": vars(sizes), "seed": settings.seed}
    return Result(data, _draw(data), words)


def _draw(data: dict[str, Any]) -> dict[str, Any]:
    of_network = [
        line(name, data["rows"], data["gaps"][key], colour)
        for name, key, colour in (
            ("as printed", "printed", VERMILLION),
            ("last line of the proof", "proof", ORANGE),
            ("with all constants", "explicit", BLUE),
        )
    ]
    simulated: Sequence[dict[str, Any]] = data["simulated"]
    rows = [r["rows"] for r in simulated]
    of_samples = [
        line("with all constants", rows, [r["gap"] for r in simulated], BLUE),
        line("needed by 95 % of samples", rows, [r["needed"] for r in simulated], GREEN),
        line("needed by the worst", rows, [r["largest"] for r in simulated], GREY),
    ]
    return picture(
        "Theorem 1 of Agnostic-SAM: the gap between the true loss and the worst empirical loss in a ball",
        Panel("ResNet-18", "rows", "gap", of_network, "xy", across=((1.0, "the largest loss"),), powers=2),
        Panel("two weights, simulated", "rows", "", of_samples, "xy"),
    )
