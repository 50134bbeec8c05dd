"""Theorems 1 and 2 of SharpBalance (Lu et al. 2024): diversity and sharpness of SAM ensembles on random quadratics.

Members are trained by k steps of SAM on f(w) = ||A (w - w*)||^2 / 2 from w_0 with mean 0 and covariance sigma^2 I, and
tested on fresh rows of the same distribution. The sharpness is that of the mean member, in a ball of radius rho_0.
Every bound is a function of phi: `Phi.limit` is the printed one, of leading order in 1 / d, and `Phi.exact` that of
matrices of this size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from .wishart import Phi, Wishart, contraction

Moments = Callable[[int, int], float]  # phi(i, j)


@dataclass(frozen=True)
class Training:
    """The settings of the theorems.

    Parameters
    ----------
    law
        The distribution of A^T A.
    eta, rho, steps
        SAM's step size, its radius, which multiplies the gradient, and the number of steps k.
    radius
        The radius rho_0 in which sharpness is measured.
    sigma
        The standard deviation of the initial weights.
    teacher
        The norm of w*.

    Examples
    --------
    >>> law = figures.Wishart(rows=40, columns=10)
    >>> training = figures.Training(law, eta=0.1, rho=0.0, steps=1, radius=0.1, sigma=1.0, teacher=1.0)
    >>> training.part(2).law.ratio, round(training.phi.limit(1, 0), 6)  # 1 - 0.1 * 4
    (2.0, 0.6)

    """

    law: Wishart
    eta: float
    rho: float
    steps: int
    radius: float
    sigma: float
    teacher: float

    @property
    def phi(self) -> Phi:
        """The moments of Proposition 1 in this setting."""
        return Phi(self.law, self.eta, self.rho)

    def part(self, parts: int) -> Training:
        """The same training on one of `parts` equal parts of the rows."""
        if self.law.rows % parts:
            raise ValueError(f"{self.law.rows} rows cannot be split into {parts} equal parts")
        return replace(self, law=Wishart(self.law.rows // parts, self.law.columns))


def diversity(training: Training, phi: Moments) -> float:
    """Theorem 1: the variance of the members' predictions on fresh rows is phi(2k, 0) sigma^2."""
    return phi(2 * training.steps, 0) * training.sigma**2


def upper(training: Training, phi: Moments) -> float:
    """Theorem 1: sharpness <= rho_0^2 (sqrt(n/d) + 1)^2 / 2 + rho_0 sqrt(phi(2k, 2)) ||w*||."""
    return training.radius**2 / 2 * training.law.edges[1] + training.radius * _gradient_norm(training, phi)


def lower(training: Training, phi: Moments, gap: float) -> float:
    """Theorem 1: sharpness >= rho_0^2 (sqrt(n/d) - 1)^2 / 2 + rho_0 sqrt(phi(2k, 2)) ||w*|| - gap, for n >= d."""
    return training.radius**2 / 2 * training.law.edges[0] + training.radius * _gradient_norm(training, phi) - gap


def _gradient_norm(training: Training, phi: Moments) -> float:
    return sqrt(phi(2 * training.steps, 2)) * training.teacher


def gap_printed(training: Training, phi: Moments) -> float:
    """The printed G: (phi(4k, 4) - phi(2k, 2)^2) / (2 phi(2k, 2)^{3/2} ||w*||)."""
    return _spread(training, phi) / (2 * sqrt(phi(2 * training.steps, 2)) ** 3 * training.teacher)


def gap_corrected(training: Training, phi: Moments) -> float:
    """G with its factor rho_0 ||w*||^2: rho_0 ||w*|| (phi(4k, 4) - phi(2k, 2)^2) / (2 phi(2k, 2)^{3/2}).

    With Z = w*^T B^{2k} M^2 w*, E sqrt(Z) >= sqrt(E Z) - Var Z / (2 (E Z)^{3/2}), E Z = phi(2k, 2) ||w*||^2, and
    Var Z <= (phi(4k, 4) - phi(2k, 2)^2) ||w*||^4 by Cauchy and Schwarz.
    """
    return training.radius * training.teacher**2 * gap_printed(training, phi)


def gap_tight(training: Training, phi: Moments) -> float:
    """The corrected gap with the variance itself instead of its bound, smaller by a factor of about d / 2.

    Eigenvectors are uniform and independent of eigenvalues, so E[u_i^2 u_j^2] = (1 + 2 [i = j]) / (d (d + 2)) and, with
    q = x^2 B(x)^{2k}, Var Z / ||w*||^4 = (2 (phi(4k, 4) - phi(2k, 2)^2) + d Var(mean q)) / (d + 2), where
    d^2 Var(mean q) tends to sum_m m a_m^2 / 2 over the Chebyshev coefficients of q between the edges.
    """
    d = training.law.columns
    variance = (2 * _spread(training, phi) + d * _fluctuation(training)) / (d + 2)
    return training.radius * training.teacher * variance / (2 * sqrt(phi(2 * training.steps, 2)) ** 3)


def upper_in_parts(training: Training, parts: int, phi: Moments, printed: bool = False) -> float:
    """Theorem 2: sharpness <= rho_0^2 (sqrt(n/d) + 1)^2 / 2 + rho_0 sqrt(C) ||w*|| / S, with phi of one part."""
    c = c_printed(training, parts, phi) if printed else c_corrected(training, parts, phi)
    return training.radius**2 / 2 * training.law.edges[1] + training.radius / parts * sqrt(c) * training.teacher


def diversity_in_parts(training: Training, parts: int, phi: Moments) -> float:
    """Theorem 2: phi'(2k, 0) sigma^2 + (S - 1) / (d S) (phi'(2k, 0) - phi'(k, 0)^2) ||w*||^2."""
    k, share = training.steps, (parts - 1) / (parts * training.law.columns)
    return phi(2 * k, 0) * training.sigma**2 + share * (phi(2 * k, 0) - phi(k, 0) ** 2) * training.teacher**2


def c_printed(training: Training, parts: int, phi: Moments) -> float:
    """C of Theorem 2 as printed, with four wrong coefficients."""
    k, s, r = training.steps, parts, training.law.ratio / parts
    two, three, four = s * (s - 1), s * (s - 1) * (s - 2), s * (s - 1) * (s - 2) * (s - 3)
    return (
        s * phi(2 * k, 2)
        + two * (2 * r * phi(2 * k, 1) + 2 * phi(k, 2) * phi(k, 0) + r * (1 + r) * phi(2 * k, 0) + 2 * phi(k, 1) ** 2)
        + three * (1.5 * r * (1 + r) * phi(k, 0) ** 2 + 1.5 * r**2 * phi(2 * k, 0) + 3 * r * phi(k, 0) * phi(k, 1))
        + four * r**2 * phi(k, 0) ** 2
    )


def c_corrected(training: Training, parts: int, phi: Moments) -> float:
    """C of Theorem 2: the sum over parts l, j, s, t of E tr(M_l M_j B_s^k B_t^k) / d, by the equal indices.

    Exactly two of the four are equal in six ways: l = j gives E[M^2] phi(k, 0)^2, s = t gives r^2 phi(2k, 0), and the
    other *four* give r phi(k, 0) phi(k, 1); the paper prints 3/2, 3/2 and 3. With two pairs of an M and a B,
    l = t, j = s gives phi(k, 1)^2, and the crossing l = s, j = t gives, for free matrices,
    2 r phi(k, 0) phi(k, 1) - r^2 phi(k, 0)^2, up to terms of order 1 / d^2; the paper prints phi(k, 1)^2 for both.
    """
    k, s, r = training.steps, parts, training.law.ratio / parts
    square = phi(0, 2)  # E[M^2]: r (1 + r) in the limit
    zero, one = phi(k, 0), phi(k, 1)
    two, three, four = s * (s - 1), s * (s - 1) * (s - 2), s * (s - 1) * (s - 2) * (s - 3)
    crossing = 2 * r * zero * one - (r * zero) ** 2
    return (
        s * phi(2 * k, 2)
        + two * (2 * r * phi(2 * k, 1) + 2 * phi(k, 2) * zero + square * phi(2 * k, 0) + one**2 + crossing)
        + three * (square * zero**2 + r**2 * phi(2 * k, 0) + 4 * r * zero * one)
        + four * (r * zero) ** 2
    )


def upper_alone(training: Training, parts: int, phi: Moments) -> float:
    """The same bound for the mean over starts on a single part: rho_0 sqrt(E tr(M^2 B_s^{2k}) / d) ||w*||.

    Theorem 2 is about the mean over parts, which no member has as its weights. M is the sum of the member's own part
    and of the rest, which is independent of B_s: E tr(M^2 B_s^{2k}) / d = phi'(2k, 2) + 2 (S - 1) r phi'(2k, 1)
    + m phi'(2k, 0), with m the second moment of the rest.
    """
    k, r, law = training.steps, training.law.ratio / parts, training.law
    rest = (parts - 1) * r
    square = (parts - 1) * (phi(0, 2) - r**2) + rest**2
    gradient = sqrt(phi(2 * k, 2) + 2 * rest * phi(2 * k, 1) + square * phi(2 * k, 0)) * training.teacher
    return training.radius**2 / 2 * law.edges[1] + training.radius * gradient


def sharpness_limit(training: Training) -> float:
    """The limit of the sharpness for large d: the minimum over mu of (mu rho_0^2 + ||w*||^2 psi(mu)) / 2.

    psi(mu) is the integral of x^2 B(x)^{2k} / (mu - x) against the Marchenko-Pastur law. This is the trust-region dual
    for the mean member, whose gradient M B^k w* has a uniform direction.
    """
    top, k = training.law.edges[1], training.steps

    def weighted(excess: float, power: int) -> float:
        return training.teacher**2 * training.law.limit(
            lambda x: (x * contraction(x, training.eta, training.rho) ** k) ** 2 / (top + excess - x) ** power
        )

    low, high = 1e-12, training.teacher * sqrt(training.phi.limit(2 * k, 2)) / training.radius
    for _ in range(200):
        middle = sqrt(low * high)
        low, high = (middle, high) if weighted(middle, 2) > training.radius**2 else (low, middle)
    return ((top + high) * training.radius**2 + weighted(high, 1)) / 2


def _spread(training: Training, phi: Moments) -> float:
    return phi(4 * training.steps, 4) - phi(2 * training.steps, 2) ** 2


def _fluctuation(training: Training) -> float:
    """The variance of the mean of x^2 B(x)^{2k} over the eigenvalues of a matrix, to leading order in 1 / d."""
    count = max(64, 8 * training.steps + 16)  # above twice the degree, 4k + 2
    t = (np.arange(count) + 0.5) * np.pi / count
    x = 1 + training.law.ratio + 2 * training.law.ratio**0.5 * np.cos(t)
    q = x**2 * contraction(x, training.eta, training.rho) ** (2 * training.steps)
    m = np.arange(1, count)
    a = 2 / count * np.cos(np.outer(m, t)) @ q
    return float((m * a**2).sum() / 2) / training.law.columns**2
