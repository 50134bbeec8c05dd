"""Workers that share the batches of an objective find the curvature that one process finds on all of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from snapshots import assert_untouched
from torch import Tensor

from steppe import Elementwise
from steppe.core.basis import flat
from steppe.measures.batches import share
from steppe.measures.curvature.forms import gauss_newton, hessian
from steppe.measures.curvature.lanczos import spectral_density
from steppe.measures.curvature.measures import Eigenvalue, FrobeniusSquared, ShiftedLogDeterminant, Trace
from steppe.measures.curvature.operator import Curvature
from steppe.measures.curvature.spectrum import Dense, Sweep, diagonal
from steppe.measures.estimate import Estimate, NotFinite, last
from steppe.measures.objective import Objective

from .pair import WORLD, Pair
from .problems import FEATURES, WRAPPERS, make, network

UNEVEN = [5, 2, 4, 3]  # rows of the batches; the first few of them are used
FORMS = {"hessian": hessian, "gauss_newton": gauss_newton}
Batches = list[tuple[Tensor, Tensor]]


def squares(out: Tensor, y: Tensor) -> Tensor:
    return (out.sum(-1) - y).square()


def data(count: int) -> Batches:
    random = torch.Generator().manual_seed(4)
    x = torch.randn(sum(UNEVEN), FEATURES, dtype=torch.float64, generator=random)
    y = torch.randn(sum(UNEVEN), dtype=torch.float64, generator=random)
    return list(zip(x.split(UNEVEN), y.split(UNEVEN), strict=True))[:count]


def numbers(found: Estimate) -> tuple[float, float, int]:
    return found.value, found.stderr, found.n


def measured(objective: Objective, form: str, memory: float | None = None) -> dict[str, Any]:
    """Products one at a time and several at once, and answers to questions that stop when they know enough."""
    operator = Curvature(objective, FORMS[form], Elementwise(0.1), memory)
    vectors = [objective.draw(7, i).normal() for i in range(3)]
    sweep = Sweep(operator, seed=2, deflate=6)
    return {
        "product": flat(operator.product(vectors[0])),
        "products": [flat(v) for v in operator.products(vectors)],
        "gradient": flat(operator.gradient()),
        "largest": numbers(last(sweep.eigenvalues())),
        "trace": numbers(last(sweep.trace(0.05, most=40))),
        "squares": numbers(last(sweep.frobenius_squared(0.05, most=40))),
        "vectors": [flat(pair.vector) for pair in sweep.pairs(2)],
        "shifted": numbers(last(sweep.log_determinant_shifted(50.0, runs=2, steps=6))),
        "moment": numbers(spectral_density(operator, runs=2, steps=4).moment(2)),
        "diagonal": [flat(v) for v in diagonal(operator, n=3)],
        "products made": sweep.products,
    }


@cache
def alone(count: int, form: str) -> dict[str, Any]:
    return measured(Objective(make(network), squares, data(count)), form)


def together(rank: int, count: int, form: str, wrapper: str = "alone", memory: float | None = None) -> dict[str, Any]:
    model = WRAPPERS[wrapper](make(network))
    with assert_untouched(model):
        objective = Objective(model, squares, share(data(count)), group=dist.group.WORLD)
        return measured(objective, form, memory)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("count", "form", "wrapper", "memory"),
    [
        (4, "hessian", "alone", None),
        (3, "hessian", "ddp", None),
        (3, "gauss_newton", "alone", None),
        (3, "hessian", "alone", 0.0),
        (1, "hessian", "alone", None),
    ],
)
def test_two_workers_find_what_one_process_does(
    pair: Pair, count: int, form: str, wrapper: str, memory: float | None
) -> None:
    """Of three batches one worker has two; of one batch one worker has none."""
    first, second = pair.run(together, count, form, wrapper, memory)
    torch.testing.assert_close(first, second, rtol=0, atol=0)  # they decide alike when to stop, or one would wait
    del first["products made"]  # where a matrix has few dimensions, rounding says when they are exhausted
    expected = {name: value for name, value in alone(count, form).items() if name in first}
    torch.testing.assert_close(first, expected, rtol=1e-10, atol=1e-10)


def matrix(rank: int) -> Tensor:
    objective = Objective(make(network), squares, share(data(3)), group=dist.group.WORLD)
    return Dense(Curvature(objective)).matrix


def test_the_whole_matrix(pair: Pair) -> None:
    expected = Dense(Curvature(Objective(make(network), squares, data(3)))).matrix
    for found in pair.run(matrix):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def costs(rank: int) -> tuple[float, float, float]:
    objective = Objective(make(network), squares, share(data(3)), group=dist.group.WORLD)
    found = [q.estimate(objective) for q in (Eigenvalue(most=8), Trace(most=20), FrobeniusSquared(most=20))]
    found.append(ShiftedLogDeterminant(50.0, runs=2, steps=5).estimate(objective))
    return sum(f.cost.products for f in found), sum(f.cost.gradients for f in found), objective.spent().products


def test_the_work_of_all_workers_is_that_of_one_process(pair: Pair) -> None:
    objective = Objective(make(network), squares, data(3))
    found = [q.estimate(objective) for q in (Eigenvalue(most=8), Trace(most=20), FrobeniusSquared(most=20))]
    found.append(ShiftedLogDeterminant(50.0, runs=2, steps=5).estimate(objective))
    products, gradients = sum(f.cost.products for f in found), sum(f.cost.gradients for f in found)
    first, second = pair.run(costs)
    assert first[0] + second[0] == pytest.approx(products)
    assert first[1] + second[1] == pytest.approx(gradients)
    assert first[2] == pytest.approx(first[0])


def troubled(rank: int) -> str:
    """What is said to a worker of which only the second has infinite curvature, where its loss is finite."""

    def forward(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        spike = (model[0].weight.sum() * 0).abs().pow(1.5) if rank == 1 else 0
        return model(batch[0]) + spike, batch[1]

    objective = Objective(make(network), squares, share(data(4)), group=dist.group.WORLD, forward=forward)
    assert objective.gradient()[1].norm().isfinite()
    try:
        Trace().estimate(objective)
    except NotFinite as refusal:
        return type(refusal).__name__
    return "no error"


def test_curvature_that_is_not_finite_on_one_worker_stops_both(pair: Pair) -> None:
    assert pair.run(troubled) == ["NotFinite"] * WORLD
