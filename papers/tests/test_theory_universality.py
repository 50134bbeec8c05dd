"""Theorems 6 and 7 of the universal-SAM paper as computations."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from steppe.measures import Curvature, Dense
from steppe_papers.figures import exponential_integrals, hessian_from_point_masses, universality
from steppe_papers.figures.registry import Settings

F64 = torch.float64


@pytest.mark.parametrize("d", range(1, 18))
def test_the_nodes_are_different_small_and_not_0(d: int) -> None:
    nodes = universality.nodes(d)
    assert len(set(nodes)) == d
    assert all(1e-3 < abs(s) < 0.5 for s in nodes)


def test_the_permanent_of_known_matrices() -> None:
    assert universality.permanent(torch.ones(5, 5)) == 120
    assert universality.permanent(torch.tensor([[1.0, 2.0], [3.0, 4.0]])) == 10
    matrix = torch.arange(9.0).view(3, 3)  # Ryser's formula
    ryser = sum(
        (-1) ** (3 - len(columns)) * float(matrix[:, columns].sum(1).prod())
        for columns in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])
    )
    assert universality.permanent(matrix) == pytest.approx(ryser)


def test_sampled_integrals_tend_to_the_closed_form() -> None:
    spectrum, sigmas = torch.tensor([-0.6, 0.9], dtype=F64), [-0.4, 0.3]
    generator = torch.Generator().manual_seed(0)
    found = torch.stack([universality.sampled_integrals(spectrum, sigmas, 2000, generator) for _ in range(50)])
    error = found.std(0) / 50**0.5
    assert ((found.mean(0) - exponential_integrals(spectrum, sigmas)).abs() < 4 * error).all()


def test_the_noise_of_the_eigenvalues_is_that_of_the_system() -> None:
    """To first order, for two weights, in exact arithmetic: d lambda from d p(sigma), by implicit differentiation."""
    spectrum, sigmas = [Fraction(-1, 2), Fraction(3, 4)], [Fraction(2, 5), Fraction(-2, 5)]
    jacobian = np.array(
        [[float(-s * np.prod([1 - s * other for other in spectrum if other != of])) for of in spectrum] for s in sigmas]
    )
    step = 1e-7
    integrals = exponential_integrals(torch.tensor([float(x) for x in spectrum], dtype=F64), [float(s) for s in sigmas])
    disturbed = integrals * torch.tensor([1 + step, 1.0], dtype=F64)
    found = universality.spectrum_from_exponentials(disturbed, [float(s) for s in sigmas]).numpy()
    p = float(integrals[0]) ** -2
    expected = np.linalg.solve(jacobian, np.array([-2 * step * p, 0.0]))
    np.testing.assert_allclose(found - [float(x) for x in spectrum], expected, rtol=1e-4)


def test_the_network_s_hessian_is_autograd_s() -> None:
    sizes = universality.Sizes()
    objective = universality.small_network(sizes, 0)
    model, (x, y) = objective.model, objective.batches[0]
    shapes = dict(model.named_parameters())

    def loss(flat: Tensor) -> Tensor:
        parts = torch.split(flat, [p.numel() for p in shapes.values()])
        weights = {n: part.view_as(p) for part, (n, p) in zip(parts, shapes.items(), strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    flat = torch.cat([p.detach().reshape(-1) for p in shapes.values()])
    dense = torch.func.hessian(loss)(flat)
    torch.testing.assert_close(Dense(Curvature(objective)).matrix, dense, rtol=1e-9, atol=1e-12)
    v = torch.linspace(-1, 1, len(flat), dtype=F64)
    at = universality.vector(objective, v)
    assert float(at.dot(Curvature(objective).product(at))) == pytest.approx(float(v @ dense @ v), rel=1e-9)
    again = hessian_from_point_masses(lambda v: float(v @ dense @ v), len(flat))
    torch.testing.assert_close(again, dense)
    assert torch.func.grad(loss)(flat).abs().max() < 1e-12  # a minimum


def test_root_mean_square_and_its_error() -> None:
    draws = np.random.default_rng(0).normal(size=(400, 50))
    found = [universality.root_mean_square(row.tolist()) for row in draws]
    assert np.mean([v for v, _ in found]) == pytest.approx(1, abs=0.02)
    assert np.mean([e for _, e in found]) == pytest.approx(np.std([v for v, _ in found]), rel=0.1)


def test_universality_as_a_study() -> None:
    result = universality.universality(Settings(quick=True))
    assert [r["d"] for r in result.data["exact"]] == [2, 4]
    assert all(r["largest"] < 1e-6 < r["median_noisy"] < 0.1 for r in result.data["exact"])
    few, many = (r["error"] for r in result.data["sampled"][:2])
    assert many < few
    assert result.data["point_masses"]["d"] == 16
    assert len(result.words) == 3
