"""SA-SAM's step sizes on quadratics and at the edge of stability."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steppe import SASAM, SASGD
from steppe_papers.figures import sa_sam
from steppe_papers.figures.registry import Settings

F64 = torch.float64


def bowl(values: list[float], seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    d = len(values)
    axes = torch.linalg.qr(torch.randn(d, d, dtype=F64, generator=g)).Q
    return (axes * torch.tensor(values, dtype=F64)) @ axes.T, torch.randn(d, dtype=F64, generator=g)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(0.05, 20), min_size=1, max_size=4),
    st.integers(0, 100),
    st.sampled_from([1e-4, 0.01, 1.0]),
    st.sampled_from([SASAM(), SASGD(), SASAM(damping=1.0), SASGD(damping=1.0), SASAM(lagging_radius=True)]),
)
def test_step_sizes_lie_between_the_inverse_curvatures(
    values: list[float], seed: int, eta_0: float, method: SASAM | SASGD
) -> None:
    hessian, start = bowl(values, seed)
    etas = []
    for point in sa_sam.train_quadratic(method, hessian, start, 25, eta_0):
        if point.loss < 1e-20 or point.loss > 1e20:  # where differences are rounding
            break
        etas.append(point.eta)
    low, high = sa_sam.step_size_bounds(min(values), max(values), method.damping)
    assert all(low * (1 - 1e-6) <= eta <= high * (1 + 1e-6) for eta in etas[1:])
    for earlier, before, now in zip(etas, etas[1:], etas[2:], strict=False):
        assert now <= before * sqrt(1 + 0.02 * before / earlier) * (1 + 1e-9)


def test_the_lower_bound_is_reached_and_is_half_of_the_printed_one() -> None:
    hessian, start = bowl([3.0], 0)
    etas = [p.eta for p in sa_sam.train_quadratic(SASAM(), hessian, start, 10, 1e-3)]
    assert etas[1:] == pytest.approx([1 / 6] * 9)
    assert min(etas[1:]) < 0.51 * (1 / 3), "1 / beta, as printed, is not a lower bound"


def test_the_lasting_growth_is_a_fixed_point() -> None:
    theta = 5.0
    for _ in range(200):
        theta = sqrt(1 + 0.02 * theta)
    assert sa_sam.growth(0.02) == pytest.approx(theta, rel=1e-12)


@pytest.mark.parametrize("damping", [2.0, 1.0])
@pytest.mark.parametrize("values", [[7.0], [5.0, 1.0], [0.3, 0.2, 0.1]])
def test_sa_sam_comes_to_rest_at_a_loss_of_its_own(values: list[float], damping: float) -> None:
    """1/36 with the paper's damping, whatever the curvatures: on a quadratic SA-SAM does not converge."""
    hessian, start = bowl(values, 4)
    *_, before, last = sa_sam.train_quadratic(SASAM(damping=damping), hessian, start, 160, 1e-2)
    rest = sa_sam.limit_cycle(max(values), damping)
    assert last.loss == pytest.approx(rest.loss, rel=1e-3)
    assert float(last.weights.norm()) == pytest.approx(rest.length, rel=1e-3)
    assert sqrt(last.eta) == pytest.approx(rest.radius, rel=1e-3)
    torch.testing.assert_close(last.weights, -before.weights, rtol=1e-2, atol=1e-2 * rest.length)
    if damping == 2.0:
        assert rest.loss == pytest.approx(1 / 36)


def test_sa_sgd_does_converge() -> None:
    hessian, start = bowl([5.0, 1.0], 4)
    *_, last = sa_sam.train_quadratic(SASGD(), hessian, start, 150, 1e-3)
    assert last.loss < 1e-12


def test_gradient_descent_reaches_the_edge_and_the_edge_is_what_was_set() -> None:
    sizes = sa_sam.Sizes(rows=60, width=8, steps=300, every=100, lr=0.2)
    trace = sa_sam.train(sa_sam.methods(sizes)["gd"], sizes, seed=0)
    assert trace.edge == pytest.approx([10.0] * 3)
    assert trace.top[-1] == pytest.approx(10.0, rel=0.35)
    assert trace.loss[-1] < trace.loss[0]


def test_edge_of_stability_as_a_study() -> None:
    result = sa_sam.edge_of_stability(Settings(quick=True, sizes={"steps": 40, "rows": 30, "width": 4}))
    assert set(result.data["traces"]) == {"gd", "sam", "sa-sgd", "sa-sam"}
    assert all(len(t["step"]) == 2 and min(t["top"]) > 0 for t in result.data["traces"].values())
    assert "1/36" in result.words[-1]
    assert len(result.figure["data"]) == 8
