"""Landscapes at one radius: the rule on bowls, whose rise along an eigenvector is lambda r^2 / 2."""

from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
import torch
from problems import QuadraticBowl, conv_problem, each_output
from torch import nn

from steppe.measures.comparison import comparable_slices, directions_of, radius_of_rise, rise_at
from steppe.measures.objective import Objective
from steppe.measures.plotting import caption

F64 = torch.float64


def bowl(*eigenvalues: float) -> Objective:
    """w' H w / 2 at its minimum, with these eigenvalues in a random basis."""
    values = torch.tensor(eigenvalues, dtype=F64)
    generator = torch.Generator().manual_seed(len(values))
    basis = torch.linalg.qr(torch.randn(len(values), len(values), dtype=F64, generator=generator))[0]
    rows = torch.cat([torch.ones(3, 1, dtype=F64), torch.zeros(3, len(values), dtype=F64)], 1)
    model = QuadraticBowl(basis @ values.diag() @ basis.T, torch.zeros(len(values), dtype=F64))
    return Objective(model, each_output, (rows, torch.zeros(3)))


SHARP, FLAT = bowl(28.0, 7.0, 2.0, 0.5), bowl(1.0, 0.9, 0.3, 0.1)


@pytest.mark.parametrize("r", [0.01, 0.3, 2.0])
def test_along_the_top_eigenvector_a_bowl_rises_by_half_the_eigenvalue_times_the_square(r: float) -> None:
    directions = directions_of(SHARP, "eigenvectors")
    assert rise_at(SHARP, directions, r) == pytest.approx(28 * r**2 / 2, rel=1e-9)
    assert rise_at(SHARP, directions[1:], r) == pytest.approx(7 * r**2 / 2, rel=1e-5)
    assert rise_at(SHARP, directions_of(SHARP, "eigenvectors", axes=1), r) == rise_at(SHARP, directions[:1], r)


@pytest.mark.parametrize("rise", [1e-9, 0.1, 1.0, 50.0])
def test_the_radius_is_where_the_sharper_bowl_has_risen(rise: float) -> None:
    for objective, top in ((SHARP, 28.0), (FLAT, 1.0)):
        radius = radius_of_rise(objective, directions_of(objective, "eigenvectors"), rise)
        assert radius == pytest.approx(sqrt(2 * rise / top), rel=2e-4)


def test_planes_of_two_bowls_have_the_radius_of_the_sharper_one() -> None:
    objectives = [FLAT, SHARP]
    flat, sharp = comparable_slices(objectives, [directions_of(o, "eigenvectors") for o in objectives], 5, 2.0)
    radius = sqrt(2 * 2.0 / 28)
    assert flat.axes[0].tolist() == flat.axes[1].tolist() == sharp.axes[0].tolist()
    assert sharp.axes[0][-1] == pytest.approx(radius, rel=2e-4)
    assert sharp.excess[-1, 2] == sharp.excess[0, 2] == pytest.approx(2.0, rel=4e-4)
    assert flat.excess[-1, 2] == pytest.approx(2.0 / 28, rel=4e-4)  # a picture of the ratio of the eigenvalues
    assert sharp.excess[2, -1] == pytest.approx(7 * radius**2 / 2, rel=1e-3)
    x, y = np.meshgrid(sharp.axes[0], sharp.axes[1], indexing="ij")
    np.testing.assert_allclose(sharp.excess, 14 * x**2 + 3.5 * y**2, rtol=1e-4, atol=1e-9)
    assert sharp.notes == {"radius": sharp.axes[0][-1], "rise": 2.0, "own_radius": sharp.axes[0][-1]}
    assert flat.notes["own_radius"] == pytest.approx(2.0, rel=2e-4)
    told = caption([flat, sharp], ["flat", "sharp"])
    assert "radius 0.378: sharp rises by 2 at the end of an axis; flat rises by as much at 2;" in told
    assert sharp.cost.losses > 25  # the search is part of the cost


def test_a_given_radius_is_used_as_it_is() -> None:
    (plane,) = comparable_slices([FLAT], [directions_of(FLAT, "eigenvectors")], 3, radius=0.25)
    assert plane.axes[0].tolist() == [-0.25, 0.0, 0.25]
    assert plane.notes == {"radius": 0.25}
    assert "rises" not in caption(plane)


def test_random_directions_have_the_norms_of_the_filters_of_each_model() -> None:
    problem = conv_problem(1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    a, b = directions_of(objective, "random", seed=3)
    for direction in (a, b):
        for d, p in zip(direction.vector.tensors, objective.params.values(), strict=True):
            for k in range(len(p) if p.ndim > 1 else 0):
                assert float(d[k].norm()) == pytest.approx(float(p[k].detach().norm()), rel=1e-9)
    radius = radius_of_rise(objective, [a, b], 0.5)
    assert rise_at(objective, [a, b], radius) == pytest.approx(0.5, rel=1e-3)


class Bounded(nn.Module):
    """A loss that never rises by more than 0.5, and one that is infinite beyond a distance."""

    def __init__(self, wall: bool):
        super().__init__()
        self.w, self.wall = nn.Parameter(torch.zeros(2, 2, dtype=F64)), wall

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = self.w.square().sum()
        return x * (torch.where(square < 4, square / 100, inf) if self.wall else 0.5 * square / (1 + square))


def test_a_loss_that_does_not_rise_so_far_says_so_and_a_wall_is_a_rise() -> None:
    data = (torch.ones(3, dtype=F64), torch.zeros(3))
    bounded, walled = (Objective(Bounded(wall), each_output, data) for wall in (False, True))
    directions = directions_of(bounded, "eigenvectors")
    assert radius_of_rise(bounded, directions) == inf
    with pytest.raises(ValueError, match=r"does not rise by 1 within a distance of 10000"):
        comparable_slices([bounded], [directions], 3)
    assert radius_of_rise(walled, directions_of(walled, "eigenvectors")) == pytest.approx(2, rel=2e-4)
    both = comparable_slices([bounded, SHARP], [directions, directions_of(SHARP, "eigenvectors")], 3)
    assert both[0].notes["own_radius"] is None
    assert "panel 1 rises by as much nowhere" in caption(both)
    with pytest.raises(ValueError, match="more than 0"):
        radius_of_rise(SHARP, directions_of(SHARP, "eigenvectors"), 0.0)


def test_a_stopped_comparison_returns_what_it_has() -> None:
    def tick(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    directions = [directions_of(o, "eigenvectors") for o in (FLAT, SHARP)]
    (part,) = comparable_slices([FLAT, SHARP], directions, 3, tick=tick)
    assert part.filled.sum() == 2
