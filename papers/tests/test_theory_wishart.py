"""Wishart moments four ways, and phi of SharpBalance's Proposition 1, against recursions, counts and draws."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import combinations
from math import comb, factorial, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe_papers.figures.wishart import Phi, Wishart, narayana

PAPER = Wishart(3000, 150)
EDGE = Phi(PAPER, 0.005, 0.4)  # a step near the edge of stability, where the limit is worst


def partitions(things: list[int]):
    """All set partitions."""
    if not things:
        yield []
        return
    first, rest = things[0], things[1:]
    for n in range(len(rest) + 1):
        for others in combinations(rest, n):
            left = [t for t in rest if t not in others]
            for more in partitions(left):
                yield [[first, *others], *more]


def crosses(blocks: list[list[int]]) -> bool:
    return any(
        a < x < b < y or x < a < y < b
        for p, q in combinations(blocks, 2)
        for a, b in combinations(p, 2)
        for x, y in combinations(q, 2)
    )


@pytest.mark.parametrize("m", range(1, 8))
def test_narayana_counts_partitions_that_do_not_cross(m: int) -> None:
    found = [len(blocks) for blocks in partitions(list(range(m))) if not crosses(blocks)]
    assert [found.count(k) for k in range(1, m + 1)] == [narayana(m, k) for k in range(1, m + 1)]


@cache
def by_parts(traces: tuple[int, ...], n: int, d: int) -> int:
    """E[tr W^a tr W^b ...] by Gaussian integration by parts, which takes one matrix X out of the first trace."""
    d_times = d ** traces.count(0)
    k, *rest = sorted((t for t in traces if t), reverse=True) or [0]
    if k == 0:
        return d_times

    def other(*new: int) -> int:
        return by_parts(tuple(sorted(new)), n, d)

    total = (n + k - 1) * other(k - 1, *rest) + sum(other(j + 1, k - 2 - j, *rest) for j in range(k - 1))
    for i, power in enumerate(rest):
        total += 2 * power * other(k + power - 1, *rest[:i], *rest[i + 1 :])
    return d_times * total


@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 3), (3, 5), (7, 7), (2, 9), (3000, 150)])
def test_exact_moments_are_those_of_integration_by_parts(n: int, d: int) -> None:
    for m in range(11):
        assert Wishart(n, d).moment(m) == Fraction(by_parts((m,), n, d), d ** (m + 1))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_a_matrix_and_its_transpose_have_the_same_traces(n: int, d: int, m: int) -> None:
    if m:
        assert Wishart(n, d).moment(m) * d ** (m + 1) == Wishart(d, n).moment(m) * n ** (m + 1)


@given(st.integers(1, 100), st.integers(0, 30))
@settings(deadline=None)
def test_one_column_is_chi_squared(n: int, m: int) -> None:
    assert Wishart(n, 1).moment(m) == np.prod([n + 2 * i for i in range(m)], dtype=object)


def test_low_moments_in_words() -> None:
    n, d = 3000, 150
    assert PAPER.moment(2) == Fraction(n * d * (n + d + 1), d**3)
    assert PAPER.moment(3) == Fraction(n * d * (n**2 + d**2 + 3 * n * d + 3 * n + 3 * d + 4), d**4)


def test_moments_are_those_of_drawn_matrices() -> None:
    n, d, rng = 6, 4, np.random.default_rng(0)
    a = rng.standard_normal((40000, n, d)) / sqrt(d)
    values = np.linalg.eigvalsh(np.swapaxes(a, 1, 2) @ a)
    for m in (1, 2, 3, 4):
        drawn = (values**m).mean(1)
        error = drawn.std() / sqrt(len(drawn))
        assert abs(drawn.mean() - float(Wishart(n, d).moment(m))) < 4 * error


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 12))
@settings(deadline=None)
def test_quadrature_is_the_rational_sum(n: int, d: int, m: int) -> None:
    law = Wishart(n, d)
    assert law.limit(lambda x: x**m) == pytest.approx(float(law.limit_moment(m)), rel=1e-12)


@pytest.mark.parametrize(
    ("n", "d"), [(93, 100), (96, 100), (999, 1000), (100, 100), (1001, 1000), (104, 100), (105, 100)]
)
def test_nearly_square_matrices(n: int, d: int) -> None:
    """There the density has a pole at 0, or nearly, and yet the law has mass 1."""
    law = Wishart(n, d)
    assert law.limit(np.ones_like) == pytest.approx(1, abs=1e-13)
    phi = Phi(law, 0.1, 0.2)
    assert phi.limit(6, 0) == pytest.approx(float(phi.printed_sum(6, 0)), rel=1e-12)


@pytest.mark.parametrize(("n", "d"), [(3000, 150), (300, 150), (100, 300)])
def test_quadrature_is_the_integral_of_the_density(n: int, d: int) -> None:
    from scipy.integrate import quad

    law, f = Wishart(n, d), lambda x: np.exp(-x / 3)
    a, b = law.edges
    bulk, _ = quad(lambda x: f(x) * sqrt(max((x - a) * (b - x), 0)) / (2 * pi * x), a, b, epsabs=1e-12, limit=200)
    assert law.limit(f) == pytest.approx(bulk + max(0, 1 - n / d), rel=1e-8)


def test_orders_of_the_corrections() -> None:
    """Twice the dimension: half the error of the limit, a quarter of that with the next term."""
    off = {}
    for d in (40, 80):
        phi = Phi(Wishart(4 * d, d), 0.02, 0.3)
        exact = phi.exact(8, 1)
        off[d] = phi.limit(8, 1) - exact, phi.first_order(8, 1) - exact
    assert off[40][0] / off[80][0] == pytest.approx(2, rel=0.05)
    assert off[40][1] / off[80][1] == pytest.approx(4, rel=0.1)


def literal(phi: Phi, i: int, j: int) -> Fraction:
    """Proposition 1 as it is printed, symbol by symbol."""
    eta, rho, n, d = Fraction(str(phi.eta)), Fraction(str(phi.rho)), phi.law.rows, phi.law.columns
    total = Fraction(int(j == 0))
    for k1 in range(i + 1):
        for k2 in range(i - k1 + 1):
            k3 = i - k1 - k2
            m = k2 + 2 * k3 + j
            inner = sum(
                Fraction(d, n) ** (m - b) * Fraction(comb(m - 1, b - 1) * comb(m, b - 1), b) for b in range(1, m + 1)
            )
            many = factorial(i) // (factorial(k1) * factorial(k2) * factorial(k3))
            total += many * (-eta) ** (k2 + k3) * rho**k3 * Fraction(n, d) ** m * inner
    return total


@pytest.mark.parametrize(("i", "j"), [(0, 0), (0, 2), (1, 0), (3, 1), (6, 0), (6, 2), (7, 4)])
def test_phi_is_the_printed_sum(i: int, j: int) -> None:
    for law in (PAPER, Wishart(300, 150), Wishart(50, 100)):
        phi = Phi(law, 0.003, 0.45)
        assert phi.printed_sum(i, j) == literal(phi, i, j)
        assert phi.limit(i, j) == pytest.approx(float(literal(phi, i, j)), rel=1e-12)
        assert phi.float_sum(i, j) == pytest.approx(float(literal(phi, i, j)), rel=1e-6)


def test_the_sum_is_lost_in_float64_and_quadrature_is_not() -> None:
    assert float(EDGE.printed_sum(40, 4)) == pytest.approx(117.486, abs=5e-4)
    assert EDGE.limit(40, 4) == pytest.approx(float(EDGE.printed_sum(40, 4)), rel=1e-13)
    assert abs(EDGE.float_sum(40, 4)) > 1e4


def test_the_gap_of_the_limit_at_the_papers_size() -> None:
    assert EDGE.limit(20, 0) == pytest.approx(1.3423334e-3, rel=1e-6)
    assert EDGE.first_order(20, 0) == pytest.approx(1.7745067e-3, rel=1e-6)
    assert EDGE.exact(20, 0) == pytest.approx(1.9009481e-3, rel=1e-6)


def test_proposition_1_on_drawn_matrices() -> None:
    """E[B^i M^j] is phi(i, j) times the identity: every entry of the mean, within its standard error."""
    law, rng = Wishart(12, 3), np.random.default_rng(1)
    a = rng.standard_normal((60000, law.rows, law.columns)) / sqrt(law.columns)
    m = np.swapaxes(a, 1, 2) @ a
    b = np.eye(3) - 0.03 * m - 0.03 * 0.2 * m @ m
    drawn = np.linalg.matrix_power(b, 4) @ m @ m
    error = drawn.std(0) / sqrt(len(drawn))
    assert np.all(abs(drawn.mean(0) - Phi(law, 0.03, 0.2).exact(4, 2) * np.eye(3)) < 4.5 * error)
    assert Phi(law, 0.03, 0.2).limit(4, 2) != pytest.approx(Phi(law, 0.03, 0.2).exact(4, 2), rel=0.02)


def test_a_matrix_has_rows_and_columns() -> None:
    with pytest.raises(ValueError, match="not 0 x 3"):
        Wishart(0, 3)
