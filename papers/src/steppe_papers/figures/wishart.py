"""Spectral moments of A^T A, where A is n x d with independent entries from N(0, 1/d).

There are four versions: the limit of large d in exact rationals (Narayana's sum) and by quadrature (Marchenko-Pastur
law), the limit with its next term in 1/d, and the exact moments of matrices of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import comb, exp, factorial
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.extend import BLUE, GREEN, VERMILLION

from .panels import Panel, line, picture
from .registry import Result, Settings

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

NODES = 1024  # of the quadrature: exact for polynomials up to this degree, times x
SQUARE = exp(0.04)  # for ratios nearer to 1 the pole at 0 is too near for the nodes: exp(-0.04 NODES) = 2e-18


@dataclass(frozen=True)
class Wishart:
    """The distribution of A^T A, where A has independent normal entries with variance 1 / columns.

    Parameters
    ----------
    rows, columns
        The shape of A.

    Examples
    --------
    >>> law = figures.Wishart(rows=2, columns=1)  # chi-squared with two degrees of freedom
    >>> law.moment(2), law.limit_moment(2)  # 2 * (2 + 2), and 2 + 2^2
    (Fraction(8, 1), Fraction(6, 1))

    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"a data matrix needs at least one row and one column, not {self.rows} x {self.columns}")

    @property
    def ratio(self) -> float:
        """Rows over columns, n / d."""
        return self.rows / self.columns

    @property
    def edges(self) -> tuple[float, float]:
        """The limits (sqrt(n/d) - 1)^2 and (sqrt(n/d) + 1)^2 of the smallest and largest non-zero eigenvalue."""
        root: float = self.ratio**0.5
        return (root - 1) ** 2, (root + 1) ** 2

    def limit(self, f: Function) -> float:
        """E[tr f(A^T A)] / d as d grows with n / d fixed: the integral of f against the Marchenko-Pastur law.

        With x = 1 + c + 2 sqrt(c) cos t, c = n / d, the density sqrt((x - a)(b - x)) / (2 pi x) becomes
        2 c sin(t)^2 / (pi x), which is periodic and smooth, so that equidistant nodes converge geometrically. For
        c < 1 there is an atom of mass 1 - c at 0.
        """
        t, x = self._nodes()
        weight = 4 * self.ratio * np.sin(t) ** 2 / 2
        if 1 / SQUARE < self.ratio < SQUARE:  # the constant f(0) integrates to f(0), and f - f(0) cancels the pole
            zero = float(f(np.zeros(1))[0])
            return zero + float(np.mean(weight * (f(x) - zero) / x))
        atom = max(0.0, 1 - self.ratio)
        return float(np.mean(weight * f(x) / x)) + (atom * float(f(np.zeros(1))[0]) if atom else 0.0)

    def first_order(self, f: Function) -> float:
        """E[tr f(A^T A)] / d up to terms of order 1 / d^2: the limit plus the next term for real matrices.

        d times that term is (f(a) + f(b)) / 4 - (1 / 2 pi) * integral of f(x) / sqrt((x - a)(b - x)) between the
        edges a and b (Bai and Silverstein 2004, Theorem 1.1 and equation 1.17, for smooth f).
        """
        _, x = self._nodes()
        at_edges = f(np.array(self.edges))
        return self.limit(f) + (float(at_edges.sum()) / 4 - float(np.mean(f(x))) / 2) / self.columns

    def limit_moment(self, order: int) -> Fraction:
        """The limit of E[tr (A^T A)^m] / d: the sum over l of (n / d)^l N(m, l), N the Narayana numbers (Eq. 6)."""
        ratio = Fraction(self.rows, self.columns)
        if order == 0:
            return Fraction(1)
        return sum((ratio**k * narayana(order, k) for k in range(1, order + 1)), Fraction(0))

    def moment(self, order: int) -> Fraction:
        """E[tr (A^T A)^m] / d of a matrix of this size, exactly."""
        return Fraction(_trace_moment(order, self.rows, self.columns), self.columns ** (order + 1))

    def _nodes(self) -> tuple[Array, Array]:
        t = (np.arange(NODES) + 0.5) * np.pi / NODES
        return t, 1 + self.ratio + 2 * self.ratio**0.5 * np.cos(t)


def narayana(m: int, k: int) -> int:
    """The number of non-crossing partitions of m elements into k blocks: (1 / k) C(m - 1, k - 1) C(m, k - 1)."""
    return comb(m - 1, k - 1) * comb(m, k - 1) // k


@lru_cache(maxsize=4096)
def _trace_moment(order: int, rows: int, columns: int) -> int:
    """E[tr W^m] for W = X^T X with standard normal X, by zonal polynomials."""
    # Jack's symmetric functions of parameter 2 have E[J_k(W)] = prod (d + c)(n + c), with c = 2 (column) - (row) over
    # the boxes of the partition k, counted from 0, and the power sum p_m is the sum over k of 2 m prod' c / h_k J_k,
    # without the first box in prod' (Macdonald 1995, VI.10; Muirhead 1982, theorem 7.2.7). The factor c = 0 of the box
    # in row 2, column 1 leaves only the partitions (a, b, 1, ..., 1). h_k is the product of the hook lengths of 2k,
    # which divides (2m)!.
    if order == 0:
        return columns
    first, second, below = (_row_products(order, rows, columns, c) for c in ((0, 2), (-1, 2), (-2, -1)))
    total, whole = 0, factorial(2 * order)
    for b in range(order // 2 + 1):
        for a in range(max(b, 1), order - b + 1):
            ones = order - a - b
            if b or not ones:
                total += first[a] * second[b] * below[ones] * (whole // _hooks(a, b, ones))
    moment, remainder = divmod(2 * order * total, whole)
    assert remainder == 0
    return moment


@lru_cache(maxsize=64)
def _row_products(order: int, rows: int, columns: int, contents: tuple[int, int]) -> list[int]:
    """Products of c (d + c)(n + c) over the first boxes of a row, with c = start, start + step, ..."""
    start, step = contents
    factors = ((c or 1) * (columns + c) * (rows + c) for c in range(start, start + step * order, step))
    return list(accumulate(factors, mul, initial=1))


def _hooks(a: int, b: int, ones: int) -> int:
    """The product of the hook lengths (2 arm + leg + 1)(2 arm + leg + 2) over the boxes of (a, b, 1, ..., 1)."""
    if b == 0:
        return factorial(2 * a)
    corner, under = 2 * a + ones, 2 * b - 1 + ones
    long = factorial(2 * a - 1) // factorial(2 * (a - b) + 1) * factorial(2 * (a - b))  # row 1 without its first box
    row_2 = under * (under + 1) * factorial(2 * b - 2)
    return corner * (corner + 1) * long * row_2 * factorial(ones) * factorial(ones + 1)


def contraction(x: Any, eta: Any, rho: Any) -> Any:
    """The factor 1 - eta x - eta rho x^2 of a SAM step on the error along an eigenvector of curvature x."""
    return 1 - eta * x - eta * rho * x * x


@dataclass(frozen=True)
class Phi:
    """Proposition 1: E[B^i (A^T A)^j] = phi(i, j) I, with B = I - eta A^T A - eta rho (A^T A)^2.

    The paper's phi is the sum over k1 + k2 + k3 = i of multinomial(i; k1, k2, k3) (-eta)^(k2 + k3) rho^k3 times the
    limit of the moment of order m = k2 + 2 k3 + j. It alternates, and in float64 all digits are lost to rounding for
    i = 40; quadrature keeps them.

    Parameters
    ----------
    law
        The distribution of A^T A.
    eta, rho
        SAM's step size and radius.

    Examples
    --------
    >>> phi = figures.Phi(figures.Wishart(rows=20, columns=10), eta=0.1, rho=0.5)
    >>> phi.printed_sum(1, 0)  # 1 - 0.1 * 2 - 0.1 * 0.5 * (2 + 2^2)
    Fraction(1, 2)
    >>> round(phi.limit(1, 0), 6)
    0.5

    """

    law: Wishart
    eta: float
    rho: float

    def limit(self, i: int, j: int) -> float:
        """The printed phi, of leading order in 1 / d, by quadrature."""
        return self.law.limit(lambda x: contraction(x, self.eta, self.rho) ** i * x**j)

    def first_order(self, i: int, j: int) -> float:
        """The printed phi plus its next term in 1 / d."""
        return self.law.first_order(lambda x: contraction(x, self.eta, self.rho) ** i * x**j)

    def exact(self, i: int, j: int) -> float:
        """Phi of matrices of this size, in exact arithmetic and rounded once."""
        return _exact(self, i, j)

    def printed_sum(self, i: int, j: int) -> Fraction:
        """The paper's sum in exact rationals; eta and rho are taken as decimals."""
        return self.sum_of(i, j, self.law.limit_moment)

    def float_sum(self, i: int, j: int) -> float:
        """The paper's sum term by term in float64, to show its rounding error."""
        ratio, total = self.law.ratio, 1.0 if j == 0 else 0.0
        for k2 in range(i + 1):
            for k3 in range(i + 1 - k2):
                m = k2 + 2 * k3 + j
                inner = sum((1 / ratio) ** (m - k) * narayana(m, k) for k in range(1, m + 1))
                multinomial = comb(i, k2) * comb(i - k2, k3)
                total += multinomial * (-self.eta) ** (k2 + k3) * self.rho**k3 * ratio**m * inner
        return total

    def sum_of(self, i: int, j: int, moment: Callable[[int], Fraction]) -> Fraction:
        """The sum with the given moments, in exact rationals."""
        eta, rho = Fraction(repr(self.eta)), Fraction(repr(self.rho))
        total = Fraction(0)
        for power in range(2 * i + 1):  # k2 + 2 k3
            terms = (
                comb(i, k3) * comb(i - k3, power - 2 * k3) * (-eta) ** (power - k3) * rho**k3
                for k3 in range(max(0, power - i), power // 2 + 1)
            )
            total += sum(terms, Fraction(0)) * moment(power + j)
        return total


@lru_cache(maxsize=4096)
def _exact(phi: Phi, i: int, j: int) -> float:
    return float(phi.sum_of(i, j, phi.law.moment))


# -- the study --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of `wishart-moments`: a SAM step near the edge of stability, and the dimensions."""

    eta: float = 0.005
    rho: float = 0.4
    ratio: int = 20  # rows per column, as in 3000 x 150
    columns: tuple[int, ...] = (20, 40, 80, 150, 320, 640)
    power: int = 20  # i of phi(i, j): 2k with k = 10


def wishart_moments(settings: Settings) -> Result:
    """Errors of the limit of phi, with and without its next term, for matrices of finite size, and of float64."""
    s = settings.of(Sizes(), columns=(20, 40, 80))
    rows = []
    for done, d in enumerate(s.columns):
        phi = Phi(Wishart(s.ratio * d, d), s.eta, s.rho)
        row: dict[str, Any] = {"columns": d}
        for j in (0, 2):
            row |= {f"{n}_{j}": getattr(phi, n)(s.power, j) for n in ("limit", "first_order", "exact")}
        rows.append(row)
        settings.tick(done + 1, len(s.columns))
    phi = Phi(Wishart(s.ratio * 150, 150), s.eta, s.rho)
    sums = []
    for i in range(2, 2 * s.power + 1, 2):
        rational, floats, limit = float(phi.printed_sum(i, 4)), phi.float_sum(i, 4), phi.limit(i, 4)
        errors = {"quadrature": abs(limit / rational - 1), "float": abs(floats / rational - 1)}
        sums.append({"i": i, "rational": rational, "float_sum": floats, **errors})
    at, last = min(rows, key=lambda r: abs(r["columns"] - 150)), sums[-1]
    words = [
        f"At d = {at['columns']}, phi({s.power}, 0) is {at['exact_0']:.6g} exactly, {at['limit_0']:.6g} in the limit "
        f"(printed), and {at['first_order_0']:.6g} with the next term; phi({s.power}, 2) is {at['exact_2']:.5g}, "
        f"{at['limit_2']:.5g} and {at['first_order_2']:.5g}.",
        f"The printed sum for phi({last['i']}, 4) is {last['rational']:.6g} in rationals, {last['float_sum']:.6g} term "
        f"by term in float64; quadrature differs from rationals by {max(r['quadrature'] for r in sums):.1e} at most.",
    ]
    sizes, powers = [r["columns"] for r in rows], [r["i"] for r in sums]
    orders = [("limit (printed)", "limit_0", VERMILLION), ("with the next term in 1/d", "first_order_0", GREEN)]
    methods = [("term by term in float64", "float", VERMILLION), ("quadrature", "quadrature", BLUE)]
    by_columns = [
        line(name, sizes, [abs(r[key] / r["exact_0"] - 1) for r in rows], colour, mode="lines+markers")
        for name, key, colour in orders
    ]
    by_power = [line(name, powers, [max(r[key], 1e-17) for r in sums], colour) for name, key, colour in methods]
    relative = "relative error"
    panels = [
        Panel(f"phi({s.power}, 0) against its exact value", "columns d", relative, by_columns, log="xy"),
        Panel("phi(i, 4) at d = 150 against the rational sum", "i", relative, by_power, log="y", powers=4),
    ]
    title = f"Wishart moments, eta = {s.eta}, rho = {s.rho}, n / d = {s.ratio}"
    data = {"sizes": vars(s), "by_columns": rows, "by_power": sums}
    return Result(data, picture(title, *panels), words)
