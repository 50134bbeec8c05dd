"""On a GPU: measures find what they find on a CPU, also through layers whose fast kernels have no second derivative."""

from __future__ import annotations

from copy import deepcopy
from math import inf

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from untouched import assert_untouched

from steppe import Ball, Elementwise
from steppe.measures import (
    AutoPGD,
    Dense,
    Eigenvalue,
    FisherTrace,
    FrobeniusSquared,
    GradientNorm,
    Measure,
    Objective,
    OneStep,
    PerBatch,
    ShiftedLogDeterminant,
    Trace,
    WorstCase,
    gauss_newton,
    measure,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MAGNITUDE = Elementwise(0.0, everywhere=True)
FOUND_ALIKE: dict[str, Measure] = {
    "gradient norm": GradientNorm(),
    "one step": OneStep(Ball(0.1)),
    "Auto-PGD from the weights": WorstCase(Ball(0.1, MAGNITUDE, inf), starts=1, climb=AutoPGD()),
    "per batch": PerBatch(WorstCase(Ball(0.1), starts=1)),
    "dense trace": Trace(by=Dense),
    "dense Frobenius norm": FrobeniusSquared(by=Dense),
    "dense log-determinant": ShiftedLogDeterminant(50.0, by=Dense),
    "largest eigenvalue": Eigenvalue(rtol=1e-9),
    "Gauss-Newton": Eigenvalue(rtol=1e-9, form=gauss_newton),
    "Fisher trace": FisherTrace(),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).chunk(3, dim=-1)
        return self.head(scaled_dot_product_attention(q, k, v).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][:, -1])


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


def objectives(make) -> tuple[Objective, Objective]:
    """The same model and data on the CPU and on the GPU, whose batches still lie on the CPU."""
    torch.manual_seed(0)
    model = make().double()
    data = [(torch.randn(n, 6, 4, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in (9, 5)]
    return Objective(model, cross_entropy, data), Objective(deepcopy(model).cuda(), cross_entropy, data)


@pytest.mark.parametrize("make", [perceptron, convolutional, Attention, Recurrent], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", FOUND_ALIKE)
def test_a_gpu_finds_what_a_cpu_finds(name, make):
    here, there = objectives(make)
    with assert_untouched(there.model):
        found = FOUND_ALIKE[name].estimate(there)
    assert found.value == pytest.approx(FOUND_ALIKE[name].estimate(here).value, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("make", [perceptron, convolutional, Attention, Recurrent], ids=lambda f: f.__name__)
def test_draws_on_a_gpu_repeat_and_agree_with_the_exact_trace(make):
    _, there = objectives(make)
    one, two = (Trace(rtol=0.01, most=100).estimate(there, seed=3) for _ in range(2))
    assert one == two
    exact = Trace(by=Dense).estimate(there).value
    assert abs(one.value - exact) <= 5 * one.stderr + 1e-9


def test_single_precision_on_a_gpu_is_near_double_precision():
    _, there = objectives(convolutional)
    model, data = deepcopy(there.model).float(), [(x.float(), y) for x, y in there.batches]
    single = measure(model, cross_entropy, data, ["lambda_max", "worst_l2@0.1"])
    double = measure(there.model, cross_entropy, there.batches, ["lambda_max", "worst_l2@0.1"])
    for name, found in double.items():
        assert single[name].value == pytest.approx(found.value, rel=2e-3)
