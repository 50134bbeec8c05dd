"""Theorems 1 and 2 of SharpBalance against matrices that are drawn and multiplied, without any eigenbasis."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe_papers.figures import sharpbalance as sb
from steppe_papers.figures.quadratic import ball_maximum
from steppe_papers.figures.wishart import Wishart, contraction

PARTS = 5
SMALL = sb.Training(Wishart(200, 20), eta=0.05, rho=0.3, steps=4, radius=0.1, sigma=0.7, teacher=3.0)


def grams(rng: np.random.Generator, count: int, rows: int, columns: int, parts: int) -> np.ndarray:
    a = rng.standard_normal((count, parts, rows // parts, columns)) / sqrt(columns)
    return np.swapaxes(a, 2, 3) @ a


def trained(m: np.ndarray, t: sb.Training) -> np.ndarray:
    """B^k."""
    b = np.eye(m.shape[-1]) - t.eta * m - t.eta * t.rho * m @ m
    return np.linalg.matrix_power(b, t.steps)


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The whole A^T A, the parts' B_s^k, and their mean, of 1500 data matrices."""
    parts = grams(np.random.default_rng(0), 1500, SMALL.law.rows, SMALL.law.columns, PARTS)
    b = trained(parts, SMALL)
    return parts.sum(1), b, b.mean(1)


def mean_and_error(x: np.ndarray) -> tuple[float, float]:
    return float(x.mean()), float(x.std(ddof=1) / sqrt(len(x)))


def trace(x: np.ndarray) -> np.ndarray:
    return np.trace(x, axis1=-2, axis2=-1) / x.shape[-1]


def test_c_is_the_mean_square_of_the_gradient_and_the_printed_one_is_not(drawn) -> None:
    m, _, mean = drawn
    found, error = mean_and_error(trace(mean @ m @ m @ mean) * PARTS**2)
    phi = SMALL.part(PARTS).phi
    corrected, printed = (c(SMALL, PARTS, phi.exact) for c in (sb.c_corrected, sb.c_printed))
    assert error < 0.003 * found
    assert abs(found - corrected) < 3 * error
    assert abs(found - printed) > 15 * error
    assert printed > 1.05 * corrected


def test_c_of_one_part_is_that_of_all_rows() -> None:
    """S = 1: nothing to count, and Theorem 2's bounds are Theorem 1's."""
    phi = SMALL.phi
    assert sb.c_corrected(SMALL, 1, phi.limit) == sb.c_printed(SMALL, 1, phi.limit) == phi.limit(8, 2)
    assert sb.upper_in_parts(SMALL, 1, phi.limit) == pytest.approx(sb.upper(SMALL, phi.limit))
    assert sb.upper_alone(SMALL, 1, phi.limit) == pytest.approx(sb.upper(SMALL, phi.limit))
    assert sb.diversity_in_parts(SMALL, 1, phi.limit) == pytest.approx(sb.diversity(SMALL, phi.limit))


def test_c_without_training_is_the_moment_of_all_rows() -> None:
    """k = 0: B = I whatever the parts, and the sum over parts is S^2 E[M^2]."""
    still = replace(SMALL, steps=0)
    whole = float(still.law.moment(2)) * PARTS**2
    assert sb.c_corrected(still, PARTS, still.part(PARTS).phi.exact) == pytest.approx(whole, rel=1e-12)
    assert sb.c_printed(still, PARTS, still.part(PARTS).phi.exact) != pytest.approx(whole, rel=1e-3)


def test_the_bound_for_members_alone(drawn) -> None:
    m, b, _ = drawn
    found, error = mean_and_error(trace(b[:, 0] @ m @ m @ b[:, 0]))
    slope = sb.upper_alone(SMALL, PARTS, SMALL.part(PARTS).phi.exact) - SMALL.radius**2 / 2 * SMALL.law.edges[1]
    assert abs((slope / SMALL.radius / SMALL.teacher) ** 2 - found) < 3 * error
    assert error < 0.01 * found


def test_diversities(drawn) -> None:
    """The variance over members on a fresh row of variance 1 / d, of starts and of parts: the trace of a covariance."""
    m, b, mean = drawn
    d, s2, w2 = SMALL.law.columns, SMALL.sigma**2, SMALL.teacher**2
    slow = replace(SMALL, eta=0.01)
    power = trained(m, slow)
    whole, error = mean_and_error(s2 * trace(power @ power))
    assert abs(whole - sb.diversity(slow, slow.phi.exact)) < 3.5 * error
    over_starts = s2 * trace(b @ b).mean(1)
    over_parts = w2 / d * (trace(b @ b).mean(1) - trace(mean @ mean))
    parts, error = mean_and_error(over_starts + over_parts)
    phi = SMALL.part(PARTS).phi
    assert abs(parts - sb.diversity_in_parts(SMALL, PARTS, phi.exact)) < 3.5 * error
    assert over_parts.mean() > 20 * error  # both terms are seen


def test_the_gap_is_the_variance_of_the_squared_gradient() -> None:
    """Z = w*^T B^2k M^2 w* has the mean and the variance that the bound takes; Cauchy-Schwarz's is far larger."""
    t = replace(SMALL, eta=0.01, teacher=1.0)
    m = grams(np.random.default_rng(1), 4000, 200, 20, 1)[:, 0]
    z = ((m @ trained(m, t)) ** 2).sum(1)  # every unit vector is a teacher
    phi = t.phi.exact
    assert z.mean() == pytest.approx(phi(8, 2), rel=0.01)
    scale = t.radius / (2 * phi(8, 2) ** 1.5)
    assert sb.gap_tight(t, phi) / scale == pytest.approx(z.var(), rel=0.06)
    assert sb.gap_corrected(t, phi) / scale > 5 * z.var()
    assert sb._fluctuation(t) == pytest.approx(z.mean(1).var(), rel=0.1)  # of the eigenvalues alone


def test_the_gap_counts_the_eigenvalues_too() -> None:
    """Few columns, where a sixth of the variance is that of the mean over eigenvalues."""
    t = replace(SMALL, law=Wishart(100, 5), eta=0.002, steps=1, teacher=1.0)
    m = grams(np.random.default_rng(6), 20000, 100, 5, 1)[:, 0]
    z = ((m @ trained(m, t)) ** 2).sum(1)
    assert sb.gap_tight(t, t.phi.exact) * 2 * t.phi.exact(2, 2) ** 1.5 / t.radius == pytest.approx(z.var(), rel=0.05)


@given(st.floats(0.01, 100), st.floats(0.01, 2))
@settings(deadline=None)
def test_the_corrected_gap_has_the_units_of_sharpness(teacher: float, radius: float) -> None:
    """E ||B^k M w*|| is linear in ||w*||, and its part of the sharpness in rho_0: so must be the gap; printed not."""
    unit, t = replace(SMALL, teacher=1.0, radius=1.0), replace(SMALL, teacher=teacher, radius=radius)
    phi = SMALL.phi.limit
    for gap in (sb.gap_corrected, sb.gap_tight):
        assert gap(t, phi) == pytest.approx(gap(unit, phi) * teacher * radius)
    assert sb.gap_printed(t, phi) == pytest.approx(sb.gap_printed(unit, phi) / teacher)


@given(st.floats(0.0005, 0.004), st.floats(0, 0.4), st.integers(0, 6), st.floats(0.01, 2), st.floats(0.1, 30))
@settings(max_examples=40, deadline=None)
def test_bounds_enclose_the_limit(eta: float, rho: float, steps: int, radius: float, teacher: float) -> None:
    """In the limit there is no Jensen gap, so without one the lower bound holds, and the upper one too."""
    t = sb.Training(Wishart(3000, 150), eta, rho, steps, radius, 1.0, teacher)
    limit = sb.sharpness_limit(t)
    assert sb.lower(t, t.phi.limit, 0.0) <= limit * (1 + 1e-9)
    assert limit <= sb.upper(t, t.phi.limit) * (1 + 1e-9)


@pytest.mark.parametrize(("radius", "teacher"), [(0.1, 10.0), (1.0, 3.0)])
def test_the_limit_of_sharpness_is_that_of_large_matrices(radius: float, teacher: float) -> None:
    t = sb.Training(Wishart(3000, 600), eta=0.005, rho=0.2, steps=4, radius=radius, sigma=1.0, teacher=teacher)
    rng = np.random.default_rng(2)
    values = np.linalg.eigvalsh(grams(rng, 2, 3000, 600, 1)[:, 0])[:, None]
    w = rng.standard_normal((2, 50, 600))  # eigenvectors of such a matrix are uniform
    w *= teacher / np.linalg.norm(w, axis=-1, keepdims=True)
    found = ball_maximum(values, -values * contraction(values, t.eta, t.rho) ** t.steps * w, radius).value.mean()
    assert found == pytest.approx(sb.sharpness_limit(t), rel=0.01)


def test_without_a_teacher_the_limit_is_the_top_of_the_spectrum() -> None:
    t = replace(SMALL, teacher=1e-6)
    assert sb.sharpness_limit(t) == pytest.approx(t.radius**2 / 2 * t.law.edges[1], rel=1e-3)


def test_parts_are_equal() -> None:
    with pytest.raises(ValueError, match="200 rows cannot be split into 3"):
        SMALL.part(3)
