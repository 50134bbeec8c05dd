"""Agnostic-SAM's Theorem 1: a bound on the true loss minus the worst empirical loss in a ball.

With probability 1 - delta over N rows, for a loss between 0 and L and k weights whose true loss does not decrease on
average under Gaussian noise: L_D(w) <= max over |w' - w| <= rho of L_S(w'), plus a gap. The theorem's statement and its
proof disagree on the gap (the statement lacks a root and has rho where the proof has rho^2), and the proof hides
constants in O(1). This module has all versions, with all constants.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import exp, floor, inf, log, log1p, pi, sqrt


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
