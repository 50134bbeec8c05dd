"""Traces by Hutch++: textbook formula, ranges that are captured exactly, shared products, and intervals that cover."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from matrices import F64, Matrix, trained, with_spectrum
from torch import nn

from steppe import Objective
from steppe.core.basis import flat
from steppe.core.draw import Draw
from steppe.measures import Curvature, Dense, HutchPP, Trace
from steppe.measures.estimate import last

POWER = 1 / torch.arange(1, 61, dtype=F64)
INDEFINITE = POWER * torch.where(torch.arange(60) % 3 == 2, -1.0, 1.0)


@pytest.mark.parametrize("parts", [1, 3])
def test_it_is_the_textbook_estimator(parts: int) -> None:
    """The range of A times signs, the exact trace on it, and signs projected onto its complement."""
    operator = Matrix(*trained(), parts)
    found = last(HutchPP(operator, seed=3).trace(0.0, 24))
    space, h = operator.space, operator.matrix

    def signs(key: int) -> torch.Tensor:
        draws = (Draw(space, (3, key, i), space.weights(), space.zeros()).signs() for i in range(8))
        return torch.stack([flat(z) for z in draws], 1)

    q = torch.linalg.qr(h @ signs(5)).Q
    z = signs(6) - q @ (q.mT @ signs(6))
    draws = (q.mT @ h @ q).trace() + (z * (h @ z)).sum(0)
    assert found.value == pytest.approx(float(draws.mean()), rel=1e-10)
    assert found.stderr == pytest.approx(float(draws.std()) / 8**0.5, rel=1e-8)
    assert (found.n, found.kind, operator.made) == (8, "unbiased", 24)


def test_every_probe_counts_for_the_range_of_all_rounds() -> None:
    operator = Matrix(*trained())
    sweep = HutchPP(operator)
    *_, found = sweep.trace(0.0, 60)
    assert found.n == 20
    assert sweep.products == operator.made == 60
    q, z, h = sweep._range, sweep._draws, operator.matrix
    torch.testing.assert_close(q @ q.mT, torch.eye(20, dtype=F64), rtol=0, atol=1e-13)
    rest = z.mT - q.mT @ (q @ z.mT)
    expected = float((q @ h @ q.mT).trace() + (rest * (h @ rest)).sum(0).mean())
    assert found.value == pytest.approx(expected, rel=1e-10)
    again = last(sweep.trace(0.0, 60))
    assert (again.value, operator.made) == (found.value, 60)


@pytest.mark.parametrize("rank", [1, 5, 8, 13])
def test_a_range_that_is_captured_gives_the_exact_trace(rank: int) -> None:
    values = torch.cat([torch.linspace(1, 2, rank, dtype=F64), torch.zeros(40 - rank, dtype=F64)])
    found = last(HutchPP(Matrix(with_spectrum(values))).trace())
    assert found.kind == "exact"
    assert found.value == pytest.approx(float(values.sum()), rel=1e-12)


@pytest.mark.parametrize("values", [POWER, INDEFINITE], ids=["power", "indefinite"])
def test_fixed_numbers_of_products_have_no_bias_and_intervals_cover(values: torch.Tensor) -> None:
    operator, truth, n = Matrix(with_spectrum(values)), float(values.sum()), 150
    found = [last(HutchPP(operator, seed).trace(0.0, 60)) for seed in range(n)]
    errors = torch.tensor([e.value - truth for e in found])
    assert abs(float(errors.mean())) < 3 * float(errors.std()) / n**0.5
    covered = fmean(low <= truth <= high for low, high in (e.interval() for e in found))
    assert covered > 0.93 - 3 * (0.95 * 0.05 / n) ** 0.5


def test_the_trace_of_a_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = Objective(model, nn.functional.cross_entropy, (torch.randn(40, 6), torch.randint(3, (40,))))
    exact = float(Dense(Curvature(objective)).matrix.trace())
    found = Trace(by=HutchPP).estimate(objective)
    assert found.kind in ("plug-in", "exact")
    assert abs(found.value - exact) <= 4 * found.stderr + 1e-9 * abs(exact)
    low = Trace(by=HutchPP, rtol=0.0, most=12).estimate(objective)
    assert (low.kind, low.n) == ("unbiased", 4)


def test_too_few_products_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 6 products"):
        next(HutchPP(Matrix(*trained())).trace(0.0, 5))
