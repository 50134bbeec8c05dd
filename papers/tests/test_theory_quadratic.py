"""SAM on quadratics against SAM by autograd, and the trust-region maximum against grids, ascents and its conditions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from steppe_papers.figures.quadratic import ascent, ball_maximum, unrolled, unrolled_sum

floats = st.floats(-3, 3, width=32)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_theorem_3_is_sam_by_autograd(steps: int) -> None:
    """Both closed forms, in a basis that is not the eigenbasis."""
    generator = torch.Generator().manual_seed(0)
    a, w, teacher = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((9, 5), (5,), (5,)))
    eta, rho, start = 0.01, 0.3, w.clone()

    def gradient(at: torch.Tensor) -> torch.Tensor:
        at = at.detach().requires_grad_()
        return torch.autograd.grad((a @ (at - teacher)).square().sum() / 2, at)[0]

    for _ in range(steps):
        w = w - eta * gradient(w + rho * gradient(w))
    values, basis = torch.linalg.eigh(a.T @ a)
    inside = (values.numpy(), (start @ basis).numpy(), (teacher @ basis).numpy(), eta, rho, steps)
    for form in (unrolled, unrolled_sum):
        np.testing.assert_allclose(form(*inside), (w @ basis).numpy(), rtol=1e-12, atol=1e-13)


@given(arrays(float, 4, elements=st.floats(0, 5, width=32)), arrays(float, 4, elements=floats), st.floats(0.01, 10))
@settings(max_examples=300, deadline=None)
def test_the_summit_fulfils_its_conditions(curvature: np.ndarray, gradient: np.ndarray, radius: float) -> None:
    """Feasible, stationary with a multiplier above the top eigenvalue, and as high as it says: so nothing is higher."""
    found = ball_maximum(curvature, gradient, radius)
    scale = 1 + abs(gradient).max() + curvature.max() * radius
    assert np.linalg.norm(found.point) <= radius * (1 + 1e-9)
    assert found.multiplier >= curvature.max()
    np.testing.assert_allclose((found.multiplier - curvature) * found.point, gradient, atol=2e-7 * scale)
    height = (curvature * found.point**2 / 2 + gradient * found.point).sum()
    assert found.value == pytest.approx(height, rel=1e-6, abs=1e-9)


@given(arrays(float, 2, elements=st.floats(0, 4)), arrays(float, 2, elements=floats), st.floats(0.05, 3))
@settings(max_examples=100, deadline=None)
def test_the_summit_is_the_highest_of_a_circle(curvature: np.ndarray, gradient: np.ndarray, radius: float) -> None:
    t = np.linspace(0, 2 * np.pi, 40001)
    e = radius * np.stack([np.cos(t), np.sin(t)], 1)
    on = (curvature * e * e / 2 + gradient * e).sum(1)
    best = float(ball_maximum(curvature, gradient, radius).value)
    assert on.max() <= best * (1 + 1e-12) + 1e-12
    assert best == pytest.approx(on.max(), rel=1e-6, abs=1e-6)


def test_the_hard_case_fills_up_along_the_top_eigenvector() -> None:
    """No gradient along the top: by hand, e = (1 / (3 - 1), rest) with multiplier 3."""
    found = ball_maximum(np.array([1.0, 3.0]), np.array([1.0, 0.0]), 2.0)
    assert found.multiplier == 3
    np.testing.assert_allclose(abs(found.point), [0.5, np.sqrt(4 - 0.25)], rtol=1e-12)
    assert found.value == pytest.approx((3 * 4 + 1 / 2) / 2)
    assert ball_maximum(np.array([1.0, 3.0]), np.zeros(2), 2.0).value == pytest.approx(6)
    assert ball_maximum(np.zeros(3), np.array([3.0, 0, 4.0]), 0.1).value == pytest.approx(0.5)  # flat: radius ||g||


def test_a_batch_is_its_rows() -> None:
    rng = np.random.default_rng(0)
    curvature, gradient = rng.random((3, 1, 6)), rng.standard_normal((3, 4, 6))
    whole = ball_maximum(curvature, gradient, 0.7)
    for i, j in np.ndindex(3, 4):
        one = ball_maximum(curvature[i, 0], gradient[i, j], 0.7)
        assert one.value == pytest.approx(whole.value[i, j], rel=1e-13)


def test_ascent_ends_at_the_summit() -> None:
    """Any step climbs: with long steps and patience both agree to 1e-9, and the ascent is never above."""
    rng = np.random.default_rng(3)
    curvature, gradient = 30 * rng.random((20, 15)), rng.standard_normal((20, 15))
    for radius in (0.01, 0.1, 1.0):
        best = ball_maximum(curvature, gradient, radius).value
        climbed = ascent(curvature, gradient, radius, step=1.0, steps=3000)
        assert np.all(climbed <= best * (1 + 1e-12))
        assert np.all(np.diff(climbed, axis=0) >= -1e-12 * best)
        np.testing.assert_allclose(climbed[-1], best, rtol=1e-6)
        assert np.mean(abs(climbed[-1] / best - 1) < 1e-9) > 0.9


@pytest.mark.parametrize("radius", [0.3, 1e15])
def test_ascent_is_the_papers_projected_gradient_ascent(radius: float) -> None:
    """Step 0.01, 50 times, written out with matrices; in the larger ball it never meets the border."""
    rng = np.random.default_rng(4)
    a, error = rng.standard_normal((40, 6)), rng.standard_normal(6)
    m, e = a.T @ a, np.zeros(6)
    for _ in range(50):
        e = e + 0.01 * m @ (error + e)
        e = e if np.linalg.norm(e) <= radius else e * radius / np.linalg.norm(e)
    rise = ((a @ (error + e)) ** 2).sum() / 2 - ((a @ error) ** 2).sum() / 2
    values, basis = np.linalg.eigh(m)
    assert ascent(values, values * (error @ basis), radius)[-1] == pytest.approx(rise, rel=1e-10)
