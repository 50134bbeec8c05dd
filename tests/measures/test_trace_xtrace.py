"""Traces by XTrace: leave-one-out by explicit projections, ranges that are captured, and intervals that cover."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from matrices import F64, Matrix, trained, with_spectrum
from torch import nn

from steppe import Objective
from steppe.measures import Curvature, Dense, Trace, XTrace
from steppe.measures.curvature.spectrum import JACKKNIFE
from steppe.measures.estimate import last

POWER = 1 / torch.arange(1, 61, dtype=F64)
INDEFINITE = POWER * torch.where(torch.arange(60) % 3 == 2, -1.0, 1.0)


def left_out(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What every column of w estimates: the exact trace on the range of the others' images, and its own remainder."""
    d, n = w.shape
    draws = []
    for i in range(n):
        q = torch.linalg.qr(h @ w[:, [j for j in range(n) if j != i]]).Q
        z = w[:, i] - q @ (q.mT @ w[:, i])
        draws.append((q.mT @ h @ q).trace() + (d - n + 1) / z.square().sum() * (z @ h @ z))
    return torch.stack(draws)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("most", [4, 16, 60])
def test_it_is_the_mean_over_what_each_vector_estimates_for_the_others(most: int, parts: int) -> None:
    operator = Matrix(*trained(), parts)
    trace = XTrace(operator, seed=3)
    found = last(trace.trace(0.0, most))
    n, w, h = most // 2, trace._random.mT, operator.matrix
    torch.testing.assert_close(w.norm(dim=0), torch.full((n,), 67**0.5, dtype=F64))
    draws = left_out(h, w)
    assert found.value == pytest.approx(float(draws.mean()), rel=1e-9)
    assert (found.n, found.kind) == (n, "unbiased")
    assert trace.products == operator.made == most
    if most > 4:  # a range of one direction has no others to leave out
        fewer = torch.stack([left_out(h, w[:, [j for j in range(n) if j != i]]).mean() for i in range(n)])
        jackknife = (n - 1) * fewer.var(correction=0)
        variance = (1 - JACKKNIFE) * draws.var() / n + JACKKNIFE * jackknife
        assert found.stderr == pytest.approx(float(variance.sqrt()), rel=1e-6)
    assert last(trace.trace(0.0, most)).value == found.value
    assert operator.made == most  # it has them


@pytest.mark.parametrize("rank", [1, 5, 8, 13])
def test_a_range_that_is_captured_gives_the_exact_trace(rank: int) -> None:
    values = torch.cat([torch.linspace(1, 2, rank, dtype=F64), torch.zeros(40 - rank, dtype=F64)])
    found = last(XTrace(Matrix(with_spectrum(values))).trace(0.0, 80))
    assert found.kind == "exact"
    assert found.value == pytest.approx(float(values.sum()), rel=1e-12)


@pytest.mark.parametrize("rtol", [0.0, 0.03])
@pytest.mark.parametrize("values", [POWER, INDEFINITE], ids=["power", "indefinite"])
def test_fixed_numbers_of_products_have_no_bias_and_intervals_cover(values: torch.Tensor, rtol: float) -> None:
    operator, truth, n = Matrix(with_spectrum(values)), float(values.sum()), 80
    found = [last(XTrace(operator, seed).trace(rtol, 100 if rtol else 32)) for seed in range(n)]
    errors = torch.tensor([e.value - truth for e in found])
    if not rtol:
        assert abs(float(errors.mean())) < 3 * float(errors.std()) / n**0.5
    covered = fmean(low <= truth <= high for low, high in (e.interval() for e in found))
    assert covered > 0.93 - 3 * (0.95 * 0.05 / n) ** 0.5


def test_the_trace_of_a_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = Objective(model, nn.functional.cross_entropy, (torch.randn(40, 6), torch.randint(3, (40,))))
    exact = float(Dense(Curvature(objective)).matrix.trace())
    found = Trace(by=XTrace).estimate(objective)
    assert found.kind in ("plug-in", "exact")
    assert abs(found.value - exact) <= 4 * found.stderr + 1e-5 * abs(exact)


def test_too_few_products_are_refused() -> None:
    with pytest.raises(ValueError, match="most >= 4"):
        next(XTrace(Matrix(*trained())).trace(0.0, 3))
