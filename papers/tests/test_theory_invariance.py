"""Figure 2, Examples 1 to 3 and Theorems 10 and 11 of the universal-SAM paper."""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
import pytest
import torch

from steppe_papers.figures import invariance, universal
from steppe_papers.figures.registry import Settings

F64 = torch.float64


def test_the_measure_on_a_cube_is_that_of_the_method() -> None:
    from steppe import DETERMINANT

    hessian = universal.product_hessian(0.9, 0.8)
    for half in (0.01, 1.0, 3.0):
        own = universal.functional(DETERMINANT, hessian, universal.midpoints(2, half, 20))
        assert invariance.on_a_cube(hessian, half, 20) == pytest.approx(own, rel=1e-9)


@pytest.mark.parametrize("side", [0.3, 1.0, 5.0])
def test_the_mass_is_its_double_integral(side: float) -> None:
    ticks = (np.arange(2000) + 0.5) * (2 * side / 2000) - side
    by_squares = sum(float(np.exp(-np.square(v * ticks)).sum()) for v in ticks) * (2 * side / 2000) ** 2
    assert invariance.mass(side) == pytest.approx(by_squares, rel=1e-4)


@pytest.mark.parametrize("side", [4.0, 300.0])
def test_the_mass_has_no_limit(side: float) -> None:
    assert invariance.mass(2 * side) - invariance.mass(side) == pytest.approx(2 * sqrt(pi) * log(4), rel=1e-6)


@pytest.mark.parametrize("scale", [0.3, 2.0, 7.0])
def test_the_measure_moves_with_a_change_of_scale_that_it_allows(scale: float) -> None:
    """f(v1 v2) dv gives a box and its rescaled image the same mass, in disjoint places: so the whole is infinite."""

    def mass(width: float, height: float) -> float:
        """Of the box [width, 2 width] x [height, 2 height], whose cells differ in their shape."""
        cells = (torch.arange(800, dtype=F64) + 0.5) / 800 + 1
        x, y = torch.meshgrid(width * cells, height * cells, indexing="ij")
        return float((-((x * y) ** 2)).exp().sum()) * (width / 800) * (height / 800)

    assert mass(scale, 1 / scale) == pytest.approx(mass(1.0, 1.0), rel=1e-9)
    assert mass(scale, 1.0) != pytest.approx(mass(1.0, 1.0), rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_the_same_at_the_swapped_point(seed: int) -> None:
    x = torch.randn(2, dtype=F64, generator=torch.Generator().manual_seed(seed))
    there = invariance.SWAP @ x
    assert float(invariance.swapped_loss(there)) == pytest.approx(float(invariance.swapped_loss(x)), rel=1e-12)
    covariance = torch.diag(invariance.SPREAD**2)
    torch.testing.assert_close(invariance.SWAP @ covariance @ invariance.SWAP.T, covariance)


def test_theorem_11_holds_with_an_invariant_measure_alone() -> None:
    found = invariance._under_a_swap()
    (a, b), (c, d) = found["values"]["invariant"], found["values"]["standard"]
    assert a == pytest.approx(b, rel=1e-12)
    assert abs(c / d - 1) > 1
    x = torch.tensor([0.7, -0.4], dtype=F64)
    hessian = torch.autograd.functional.hessian(invariance.swapped_loss, x)
    assert c == pytest.approx(float(hessian.square().sum()), rel=1e-12)  # the standard Gaussian: the norm itself
    scaled = torch.diag(invariance.SPREAD) @ hessian @ torch.diag(invariance.SPREAD)
    assert a == pytest.approx(float(scaled.square().sum()), rel=1e-12)
    assert found["correct"] < 1e-12 < 1 < found["printed"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "bias", "det"),
    [(2, 1, True, 4.0), (3, 1, False, 4.0), (2, 2, False, 1.0), (2, 3, False, 0.5)],
)
def test_a_rescaled_unit_changes_the_determinant_by_that_of_its_matrix(
    inputs: int, outputs: int, bias: bool, det: float
) -> None:
    of_d, ratio = invariance.rescaled_unit(inputs, 3, outputs, bias, 2.0, seed=1)
    assert of_d == det
    assert ratio == pytest.approx(det**-2, rel=1e-9)


def test_invariance_as_a_study() -> None:
    result = invariance.invariance(Settings(quick=True))
    assert len(result.words) == 5
    curves = result.data["orbit"]["curves"]
    assert curves["trace"][-1] / curves["trace"][0] == pytest.approx((10**2 + 10**-2) / 2)
    assert curves["cube 0.01"][-1] / curves["cube 0.01"][0] == pytest.approx((10**2 + 10**-2) / 2, rel=0.01)  # a trace
    assert curves["determinant"] == pytest.approx([universal.product_determinant(0.8, 1.0)] * 5)
    integrals = list(result.data["integrals"].values())
    assert integrals == sorted(integrals, reverse=True)  # towards minus infinity, where the determinant is -1
    assert len(result.figure["data"]) == 11
