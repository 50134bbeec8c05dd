"""Curvature around inputs, against dense Hessians of torch.func and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Objective, measure
from steppe.measures import FisherInputCorrelation, InputCurvature, NotFinite, fisher_traces, input_curvatures


class Call(nn.Module):
    """A function of the inputs, times a weight of 1."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.one * self.function(x)


def itself(output: Tensor, target: Tensor) -> Tensor:
    return output


def network(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if kind == "mlp":
        model: nn.Module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        return model.double(), torch.randn(6, 5, dtype=torch.float64)
    model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()
    x = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    model(x)  # running statistics that are not the initial ones
    return model.eval(), x


def dense(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The Hessian of every row's loss, one row at a time."""
    rows = []
    for one, label in zip(x, y, strict=True):
        hessian: Any = torch.func.hessian(lambda z, label=label: cross_entropy(model(z[None]), label[None]))(one)
        rows.append(hessian.reshape(one.numel(), one.numel()).detach())
    return torch.stack(rows)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in jvp
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
def test_rows_against_dense_hessians(kind: str, reduction: str) -> None:
    model, x = network(kind)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    h = dense(model, x, y)
    objective = Objective(model, lambda o, t: cross_entropy(o, t, reduction=reduction), (x, y), m=4)
    n = 800
    off = h - torch.diag_embed(h.diagonal(dim1=1, dim2=2))
    traces = input_curvatures(objective, 1, n)
    error = (2 * off.square().sum((1, 2)) / n).sqrt()  # variance of v'Hv for random signs: Avron and Toledo 2011
    assert bool(((traces - h.diagonal(dim1=1, dim2=2).sum(1)).abs() < 5 * error + 1e-12).all())
    square = h @ h
    off = square - torch.diag_embed(square.diagonal(dim1=1, dim2=2))
    squares = input_curvatures(objective, 2, n)
    error = (2 * off.square().sum((1, 2)) / n).sqrt()
    assert bool(((squares - square.diagonal(dim1=1, dim2=2).sum(1)).abs() < 5 * error + 1e-12).all())
    assert len({round(float(t), 6) for t in traces}) == 6  # rows differ


def test_one_draw_is_exact_where_the_hessian_is_diagonal() -> None:
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    objective = Objective(Call(lambda x: x.pow(4).sum(1) / 12), itself, (x, x), m=4)
    assert input_curvatures(objective, 1, 1) == pytest.approx(x.square().sum(1))
    assert input_curvatures(objective, 2, 1) == pytest.approx(x.pow(4).sum(1))
    assert input_curvatures(Objective(Call(lambda x: x.sum(1)), itself, (x, x)), 1, 1) == pytest.approx(0)  # linear


@pytest.mark.slow
@pytest.mark.parametrize(("power", "mean"), [(1, 0.25), (2, 3 / 16)])
def test_intervals_cover_the_mean_over_all_inputs(power: Any, mean: float) -> None:
    """l = (a'x)^4 / 12 has H = (a'x)^2 aa'; with x Gaussian, tr H has mean |a|^4 and tr H^2 has mean 3 |a|^8."""
    a = torch.tensor([0.5, -0.4, 0.3], dtype=torch.float64)
    a = a / a.norm() * 0.25**0.25
    model = Call(lambda x: (x @ a).pow(4) / 12)
    covered = []
    for seed in range(200):
        x = torch.randn(400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        estimate = InputCurvature(power, 2).estimate(Objective(model, itself, (x, x), trusted=True), seed)
        low, high = estimate.interval()
        covered.append(low <= mean <= high)
    assert 0.88 <= fmean(covered) <= 0.99


def test_by_name_with_cost_and_seed() -> None:
    model, x = network("mlp")
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    found = measure(model, cross_entropy, (x, y), "input_trace,input_curvature", seed=3, progress=False)
    objective = Objective(model, cross_entropy, (x, y))
    for name, power in (("input_trace", 1), ("input_curvature", 2)):
        rows = input_curvatures(objective, power, seed=3)  # type: ignore[arg-type]
        assert found[name].value == pytest.approx(float(rows.mean()))
        assert found[name].stderr == pytest.approx(float(rows.std() / 6**0.5))
        assert (found[name].cost.gradients, found[name].cost.products) == (1, 10)
    assert not torch.equal(input_curvatures(objective, seed=3), input_curvatures(objective, seed=4))


def test_the_rank_correlation_with_fisher_traces_is_scipy_s() -> None:
    """The loss sum x^3 has the squared gradient norm (sum x^3)^2 and the input curvature 36 sum x^2; rows are tied."""
    cubes = Call(lambda x: x.pow(3).sum(1))
    x = torch.randint(-2, 4, (30, 2), generator=torch.Generator().manual_seed(0)).double()
    columns = x.pow(3).sum(1).square().numpy(), 36 * x.square().sum(1).numpy()
    found = FisherInputCorrelation(draws=1).estimate(Objective(cubes, itself, (x, x), m=7))
    assert found.value == pytest.approx(spearmanr(*columns).statistic)
    without = [spearmanr(*(np.delete(column, i) for column in columns)).statistic for i in range(30)]
    assert found.stderr == pytest.approx((29 / 30 * sum((v - fmean(without)) ** 2 for v in without)) ** 0.5)
    assert (found.n, found.kind) == (30, "plug-in")
    counted = x[:, 0] != 2
    some = Objective(cubes, itself, (x, x), m=7, weight=lambda batch: float((batch[0][:, 0] != 2).sum()))
    left = FisherInputCorrelation(draws=1).estimate(some)
    assert left.n == int(counted.sum()) < 30
    assert left.value == pytest.approx(spearmanr(*(column[counted] for column in columns)).statistic)
    with pytest.raises(NotFinite):  # every row has curvature 0
        FisherInputCorrelation().estimate(Objective(Call(lambda x: x.sum(1)), itself, (x, x)))


def test_the_rank_correlation_by_name() -> None:
    model, x = network("convolutions")
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    found = measure(model, cross_entropy, (x, y), "fisher_input_correlation[draws=50]", seed=3, progress=False)
    objective = Objective(model, cross_entropy, (x, y))
    columns = fisher_traces(objective, "rows"), input_curvatures(objective, 2, 50, 3)
    assert found["fisher_input_correlation[draws=50]"].value == pytest.approx(spearmanr(*columns).statistic)


def test_refusals() -> None:
    model, x = network("convolutions")
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match="normalises with the batch's statistics"):
        input_curvatures(Objective(model, cross_entropy, (x, y), statistics="batch"))
    mixing = Call(lambda x: x.pow(3).sum(1) * x.sum())
    with pytest.raises(ValueError, match="mixes rows"):
        input_curvatures(Objective(mixing, itself, (x.flatten(1), y), trusted=True))
    embedded = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match="floating-point"):
        input_curvatures(Objective(embedded, cross_entropy, (torch.zeros(4, 2, dtype=torch.int64), y[:4])))
    with pytest.raises(ValueError, match="power of InputCurvature takes one of 1, 2, not 3"):
        InputCurvature(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws of InputCurvature takes a whole number, 1 or more, not 0"):
        InputCurvature(draws=0)
