"""On a GPU: measures find what they find on a CPU, also through layers whose fast kernels have no second derivative."""

from __future__ import annotations

from copy import deepcopy
from math import inf

import pytest
import torch
from snapshots import assert_untouched
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

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
    hessian,
    measure,
)
from steppe.measures.curvature.operator import Curvature

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
    assert one.value == pytest.approx(two.value, rel=1e-9)
    assert one.n == two.n
    exact = Trace(by=Dense).estimate(there).value
    assert abs(one.value - exact) <= 5 * one.stderr + 1e-9


def test_single_precision_on_a_gpu_is_near_double_precision():
    _, there = objectives(convolutional)
    model, data = deepcopy(there.model).float(), [(x.float(), y) for x, y in there.batches]
    single = measure(model, cross_entropy, data, ["lambda_max", "worst_l2@0.1"])
    double = measure(there.model, cross_entropy, there.batches, ["lambda_max", "worst_l2@0.1"])
    for name, found in double.items():
        assert single[name].value == pytest.approx(found.value, rel=2e-3)


# -- several products at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", [hessian, gauss_newton], ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", [perceptron, convolutional, Attention, Recurrent], ids=lambda f: f.__name__)
def test_several_products_are_those_of_a_cpu_built_recorded_and_replayed(make, form):
    here, there = objectives(make)
    expected = [here.draw(1, i).normal() for i in range(20)]
    vectors = [there.space.vector([t.cuda() for t in v.tensors]) for v in expected]
    images = Curvature(here, form).products(expected)
    operator = Curvature(there, form)
    for _ in range(4):
        for found, image in zip(operator.products(vectors), images, strict=True):
            for a, b in zip(found.tensors, image.tensors, strict=True):
                torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-9)


def wide(**options) -> Objective:
    """A network whose products are long enough for their roundings to add up."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Flatten(), nn.Linear(4096, 10)
    )
    data = (torch.randn(64, 16, 8, 8), torch.randint(0, 10, (64,)))
    return Objective(model.cuda(), cross_entropy, data, **options)


def test_many_products_in_single_precision_repeat_and_are_those_of_single_vectors():
    """Bit for bit, however often they are asked for: no clock chooses how they are made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10)).cuda()
    data = (torch.randn(64, 32), torch.randint(0, 10, (64,)))
    objective = Objective(model, cross_entropy, data)
    vectors = [objective.draw(1, i).normal() for i in range(10)]
    operator = Curvature(objective)
    first = operator.products(vectors)
    for _ in range(20):
        for one, again, alone in zip(first, operator.products(vectors), map(operator.product, vectors), strict=True):
            assert all(map(torch.equal, one.tensors, again.tensors))
            assert float((one - alone).norm()) < 1e-4 * float(one.norm())
    assert operator._batch_products._graphs.why is None
    assert operator._batch_products._graphs.count


# -- precision -------------------------------------------------------------------------------------------


def errors(**options) -> dict[str, float]:
    """How far a loss, a gradient and a product are from those in double precision, relatively."""
    single = wide(**options)
    double = Objective(deepcopy(single.model).double(), cross_entropy, [(x.double(), y) for x, y in single.batches])
    v = single.draw(1).normal()
    w = double.space.vector([t.double() for t in v.tensors])

    def apart(a, b) -> float:
        gaps = [(x.double() - y).norm() for x, y in zip(a.tensors, b.tensors, strict=True)]
        return float(torch.stack(gaps).norm() / b.norm())

    return {
        "loss": abs(single.loss() / double.loss() - 1),
        "gradient": apart(single.gradient()[1], double.gradient()[1]),
        "product": apart(Curvature(single).product(v), Curvature(double).product(w)),
        "products": apart(Curvature(single).products([v, v])[1], Curvature(double).product(w)),
    }


@pytest.fixture
def _tf32_on():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("_tf32_on")
def test_tf32_is_off_unless_asked_for_and_bf16_is_rougher_still():
    found = {precision: errors(precision=precision) for precision in ("float32", "tf32", "bf16")}
    assert max(found["float32"].values()) < 2e-5
    for name in ("gradient", "product", "products"):
        assert 5 * found["float32"][name] < found["tf32"][name] < 3e-2
        assert found["tf32"][name] < found["bf16"][name] < 0.3
    with torch.autocast("cuda", torch.bfloat16):
        assert errors() == pytest.approx(found["float32"], rel=0.5, abs=1e-6)
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


def test_the_default_settings_of_a_process_are_left_as_they_are():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    errors(precision="tf32")
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
