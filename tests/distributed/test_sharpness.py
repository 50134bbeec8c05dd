"""Sharpness measured by workers that share the batches is that of one process, batch by batch to the last bit."""

from __future__ import annotations

import re
from math import inf
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from steppe import Ball, Elementwise
from steppe.measures.batches import share
from steppe.measures.combinators import OnNormalisedLogits, PerBatch
from steppe.measures.estimate import Estimate, Measure, NotFinite
from steppe.measures.objective import Objective
from steppe.measures.sharpness import AverageCase, OneStep, box
from steppe.measures.worst_case import AutoPGD, WorstCase

from .pair import WORLD, Pair
from .problems import FEATURES, WRAPPERS, even_matrices, make

UNEVEN = [5, 2, 4, 3]  # rows of the batches; the first few of them are used
MAGNITUDE = Elementwise(0.0, everywhere=True)

MEASURES: dict[str, Measure] = {
    "worst": WorstCase(Ball(0.5), 6, 3),
    "worst, adaptive l_inf": WorstCase(Ball(0.05, MAGNITUDE, inf), 6, 3, AutoPGD()),
    "one step": OneStep(Ball(0.5, MAGNITUDE)),
    "average": AverageCase(0.5, n=4),
    "average, box, adaptive": AverageCase(0.5, box, MAGNITUDE, n=4),
    "average, normalised logits": OnNormalisedLogits(AverageCase(0.5, n=4)),
}


def data(count: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(4)
    x = torch.randn(sum(UNEVEN), FEATURES, dtype=torch.float64, generator=random)
    y = torch.randint(0, 2, (sum(UNEVEN),), generator=random)
    return list(zip(x.split(UNEVEN), y.split(UNEVEN), strict=True))[:count]


def objective(count: int) -> Objective:
    return Objective(make(even_matrices), cross_entropy, data(count))


def shared(count: int, wrapper: str = "alone") -> Objective:
    return Objective(WRAPPERS[wrapper](make(even_matrices)), cross_entropy, share(data(count)), group=dist.group.WORLD)


def per_batch(rank: int, count: int, wrapper: str) -> dict[str, Any]:
    return {name: PerBatch(measure).estimate(shared(count, wrapper), 3) for name, measure in MEASURES.items()}


@pytest.mark.parametrize(("count", "wrapper"), [(4, "alone"), (3, "ddp"), (1, "alone")])
def test_m_sharpness_of_two_workers_is_bitwise_that_of_one_process(pair: Pair, count: int, wrapper: str) -> None:
    """Of three batches one worker has two; of one batch one worker has none."""
    expected = {name: PerBatch(measure).estimate(objective(count), 3) for name, measure in MEASURES.items()}
    for found in pair.run(per_batch, count, wrapper):
        for name, one in expected.items():
            assert (found[name].value, found[name].n, found[name].kind) == (one.value, one.n, one.kind), name
            assert found[name].stderr == one.stderr or (count == 1 and found[name].stderr != found[name].stderr)


def parts(rank: int, count: int) -> list[tuple[int, Estimate]]:
    return PerBatch(MEASURES["worst"]).parts(shared(count), 3)


def test_every_worker_has_the_parts_of_its_own_batches(pair: Pair) -> None:
    first, second = pair.run(parts, 3)
    assert [number for number, _ in first] == [0, 2]
    assert [number for number, _ in second] == [1]
    assert sorted(first + second) == PerBatch(MEASURES["worst"]).parts(objective(3), 3)


def whole(rank: int, count: int, wrapper: str) -> dict[str, Any]:
    return {name: measure.estimate(shared(count, wrapper), 3) for name, measure in MEASURES.items()}


@pytest.mark.parametrize(("count", "wrapper"), [(4, "alone"), (3, "ddp"), (1, "alone")])
def test_sharpness_of_the_mean_over_all_batches_is_that_of_one_process(pair: Pair, count: int, wrapper: str) -> None:
    """All workers look at the same points: the draws of a worker must not depend on which one it is."""
    expected = {name: measure.estimate(objective(count), 3) for name, measure in MEASURES.items()}
    found, other = pair.run(whole, count, wrapper)
    for name, one in expected.items():
        assert found[name].value == other[name].value, name
        assert found[name].value == pytest.approx(one.value, rel=1e-9), name
        assert found[name].stderr == pytest.approx(one.stderr, rel=1e-6, abs=1e-12), name


def costs(rank: int) -> tuple[float, float]:
    return PerBatch(AverageCase(0.5, n=4)).estimate(shared(3)).cost.losses, WorstCase(
        Ball(0.5), 4, 1, AutoPGD()
    ).estimate(shared(3)).cost.gradients


def test_the_work_of_all_workers_is_that_of_one_process(pair: Pair) -> None:
    first, second = pair.run(costs)
    assert first[0] + second[0] == pytest.approx(9, rel=1e-12)
    assert first[1] + second[1] == pytest.approx(5, rel=1e-12)


def steep(out: Tensor, y: Tensor) -> Tensor:
    """Infinite not far from the weights on the rows of class 1, and 1 everywhere on the others."""
    return (1e3 * y * out.sum(1)).exp()


def troubled(rank: int, together: bool) -> str:
    batches = [(x, torch.full_like(y, i == 1)) for i, (x, y) in enumerate(data(4))]
    model = make(even_matrices)
    with torch.no_grad():
        model[4].weight.zero_(), model[4].bias.zero_()
    measured = Objective(model, steep, share(batches), group=dist.group.WORLD)
    measure: Measure = WorstCase(Ball(5.0), 4)
    try:
        (measure if together else PerBatch(measure)).estimate(measured)
    except NotFinite as refusal:
        return str(refusal)
    return "no error"


@pytest.mark.parametrize("together", [False, True])
def test_a_loss_that_ends_on_one_worker_stops_both(pair: Pair, together: bool) -> None:
    """The other one would wait for its numbers for ever."""
    for message in pair.run(troubled, together):
        assert re.search(r"the loss is (inf|nan) .*radius 5\.0", message)
    assert len(pair.run(costs)) == WORLD  # and both can go on
