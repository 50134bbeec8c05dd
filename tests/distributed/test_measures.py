"""Workers that share the batches of an objective measure what one process measures on all of them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from steppe import SAM
from steppe.core.process_group import Workers
from steppe.measures import Curvature, Dense, FisherTrace, Loss, PerBatch
from steppe.measures.batches import share
from steppe.measures.estimate import NotFinite
from steppe.measures.objective import Objective

from .pair import WORLD, Pair
from .problems import FEATURES, WRAPPERS, make, network, with_batch_norm

UNEVEN = [5, 2, 4, 3]  # rows of the batches; the first few of them are used
Batches = list[tuple[Tensor, Tensor]]


def squares(out: Tensor, y: Tensor) -> Tensor:
    return (out.sum(-1) - y).square()


def data(count: int) -> Batches:
    random = torch.Generator().manual_seed(4)
    x = torch.randn(sum(UNEVEN), FEATURES, dtype=torch.float64, generator=random)
    y = torch.randn(sum(UNEVEN), dtype=torch.float64, generator=random)
    return list(zip(x.split(UNEVEN), y.split(UNEVEN), strict=True))[:count]


def measured(objective: Objective) -> dict[str, Any]:
    """Everything that an objective is asked for, here and elsewhere, and what it is asked for batch by batch."""
    at = objective.draw(5).normal() * 0.2
    here, there = objective.gradient(), objective.gradient(at)
    lone = [(number, [one.loss(), one.loss(at), float(one.gradient(at)[1].norm())]) for number, one in objective.each()]
    return {
        "losses": torch.tensor([objective.loss(), objective.loss(at), here[0], there[0]], dtype=torch.float64),
        "gradients": [*here[1].tensors, *there[1].tensors],
        "each": objective.workers.all_gather(lone),
        "rows": objective.rows,
        "displacement": at.tensors,
    }


@cache
def alone(count: int) -> dict[str, Any]:
    return measured(Objective(make(network), squares, data(count)))


def together(rank: int, count: int, wrapper: str = "alone") -> dict[str, Any]:
    group = dist.group.WORLD
    model = WRAPPERS[wrapper](make(network))
    batches = share(data(count), group)
    assert len(batches) == len(range(rank, count, WORLD))
    with assert_untouched(model):
        return measured(Objective(model, squares, batches, group=group))


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    assert [number for number, _ in found["each"]] == [number for number, _ in expected["each"]]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("count", "wrapper"), [(4, "alone"), (3, "alone"), (1, "alone"), (3, "ddp")])
def test_two_workers_measure_what_one_process_does(pair: Pair, count: int, wrapper: str) -> None:
    """Of three batches one worker has two; of one batch one worker has none."""
    for found in pair.run(together, count, wrapper):
        assert_equal(found, alone(count))


def kept(batch: tuple[Tensor, Tensor]) -> Tensor:
    return (batch[1] > 0).sum()


def positive(out: Tensor, y: Tensor) -> Tensor:
    """The mean over rows whose target is positive, 0 / 0 where there is none."""
    return squares(out, y)[y > 0].mean()


def weighted(batches: Batches, **options: Any) -> dict[str, Any]:
    objective = Objective(make(network), positive, batches, weight=kept, **options)
    loss, grad = objective.gradient()
    fisher, sharp = FisherTrace("rows").estimate(objective), PerBatch(Loss()).estimate(objective)
    trace, values = Dense(Curvature(objective)).matrix.trace(), [fisher.value, fisher.stderr, sharp.value, loss]
    return {"numbers": torch.tensor([*values, float(trace)], dtype=torch.float64), "grad": grad.tensors}


def shared_weights(rank: int, dropped: int) -> dict[str, Any]:
    return weighted(share(some_kept(dropped), dist.group.WORLD), group=dist.group.WORLD)


def some_kept(dropped: int) -> Batches:
    """Batches of which one has no positive target."""
    return [(x, -y.abs() if i == dropped else y.abs() * (y > -1) - 0.1) for i, (x, y) in enumerate(data(3))]


@pytest.mark.parametrize("dropped", [0, 1])
def test_workers_weigh_their_batches_as_one_process_does(pair: Pair, dropped: int) -> None:
    """The second worker has one batch, which counts nothing if it is the dropped one."""
    for found in pair.run(shared_weights, dropped):
        torch.testing.assert_close(found, weighted(some_kept(dropped)), rtol=1e-12, atol=1e-12)


def of_class(count: int) -> Batches:
    """Batches of one class each, by turns, of which workers take turns too: each worker has one class."""
    return [(x, torch.full((len(x),), i % 2)) for i, (x, _) in enumerate(data(count))]


CLASS_LOSSES = {
    "class weights": nn.CrossEntropyLoss(torch.tensor([1.0, 7.0]).double()),
    "an ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
}


def two_logits(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    out = model(batch[0]).flatten(1).sum(1)
    return torch.stack([out, 0.5 * out**2], 1), batch[1]


def by_class(name: str, batches: Batches, **options: Any) -> dict[str, Any]:
    objective = Objective(make(network), CLASS_LOSSES[name], batches, forward=two_logits, **options)
    loss, grad = objective.gradient()
    return {"loss": loss, "grad": grad.tensors, "fisher": FisherTrace("rows").estimate(objective).value}


def shared_by_class(rank: int, name: str, count: int) -> dict[str, Any]:
    return by_class(name, share(of_class(count), dist.group.WORLD), group=dist.group.WORLD)


@pytest.mark.parametrize("name", CLASS_LOSSES)
@pytest.mark.parametrize("count", [3, 1])
def test_workers_weigh_what_a_loss_of_torch_divides_by(pair: Pair, name: str, count: int) -> None:
    """The second worker has no batch of one, and of three only one that the loss may ignore."""
    batches = of_class(count)
    whole = [(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))]
    for found in pair.run(shared_by_class, name, count):
        torch.testing.assert_close(found, by_class(name, whole), rtol=1e-12, atol=1e-12)


def summed(rank: int) -> str:
    batches = share(data(2), dist.group.WORLD)
    try:
        return str(Objective(make(network), lambda o, y: squares(o, y).sum(), batches, group=dist.group.WORLD).loss())
    except ValueError as error:
        return str(error)


def test_a_sum_is_refused_where_every_worker_has_one_batch(pair: Pair) -> None:
    assert all("sum over its rows" in said for said in pair.run(summed))


def recut(rank: int, m: int) -> tuple[list[int], float]:
    batches = share(data(4), m=m)
    objective = Objective(make(network), squares, batches, group=dist.group.WORLD)
    return [len(x) for x, _ in batches], objective.loss()


def test_batches_are_cut_anew_before_they_are_shared(pair: Pair) -> None:
    first, second = pair.run(recut, 4)
    assert (first[0], second[0]) == ([4, 4], [4, 2])
    assert first[1] == second[1] == pytest.approx(float(alone(4)["losses"][0]), rel=1e-12)


def nothing(rank: int) -> str:
    try:
        Objective(make(network), squares, [], group=dist.group.WORLD).loss()
    except ValueError as refusal:
        return str(refusal)
    return "no error"


def test_workers_that_have_nothing_at_all_are_told(pair: Pair) -> None:
    assert all("nothing to measure on" in message for message in pair.run(nothing))


def without_statistics(rank: int) -> list[bool]:
    model = WRAPPERS["ddp"](make(with_batch_norm))
    model.train()
    objective = Objective(model, squares, share(data(4)), group=dist.group.WORLD, statistics="batch")
    with assert_untouched(model):
        objective.gradient(objective.draw(0).normal())
    return [objective.model is model.module, model.training]


def test_ddp_is_taken_off_and_neither_synchronises_nor_moves(pair: Pair) -> None:
    assert pair.run(without_statistics) == [[True, True]] * WORLD


def costs(rank: int) -> tuple[float, float]:
    objective = Objective(make(network), squares, share(data(3)), group=dist.group.WORLD)
    objective.gradient()
    objective.loss()
    objective.gradient()
    return objective.spent().losses, objective.spent().gradients


def test_the_work_of_all_workers_is_that_of_one_process(pair: Pair) -> None:
    first, second = pair.run(costs)
    assert first[0] + second[0] == pytest.approx(1, rel=1e-12)
    assert first[1] + second[1] == pytest.approx(2, rel=1e-12)


def driven(rank: int) -> list[Tensor]:
    return Objective(make(network), squares, share(data(3)), group=dist.group.WORLD).drive(SAM(0.1)).tensors


def test_a_plan_is_driven_by_all_workers(pair: Pair) -> None:
    expected = Objective(make(network), squares, data(3)).drive(SAM(0.1)).tensors
    for found in pair.run(driven):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


# -- sums and lists over workers --------------------------------------------------------------------------


def sums(rank: int) -> dict[str, Any]:
    workers = Workers(dist.group.WORLD)
    layers = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(2, 2, dtype=torch.float64), nn.Linear(1, 5).bfloat16()
    space = Objective(nn.ModuleList(layers), squares, data(1)).space
    mine = space.vector([torch.full_like(p, 1.0 + rank) + i for i, p in enumerate(space.params)])
    kept = [t.clone() for t in mine.tensors]
    total = workers.all_reduce_vector(mine)
    numbers = [(3 - rank, [float(rank), 1.0]), (rank, [0.5 + rank])]
    return {
        "rank": (workers.rank, workers.count),
        "total": float(workers.all_reduce(torch.tensor(2.0 + rank))),
        "sums": [(bool((t == 3.0 + 2 * i).all()), t.dtype) for i, t in enumerate(total.tensors)],
        "kept": all(torch.equal(a, b) for a, b in zip(mine.tensors, kept, strict=True)),
        "gathered": workers.all_gather(numbers),
        "gathered from one": workers.all_gather([(rank, [])] if rank else []),
    }


def test_sums_and_lists_of_workers(pair: Pair) -> None:
    for rank, found in enumerate(pair.run(sums)):
        assert found["rank"] == (rank, WORLD)
        assert found["total"] == 5.0
        assert found["sums"] == [(True, d) for d in [torch.float32] * 4 + [torch.float64] * 2 + [torch.bfloat16] * 2]
        assert found["kept"]
        assert found["gathered"] == [(0, [0.5]), (1, [1.5]), (2, [1.0, 1.0]), (3, [0.0, 1.0])]
        assert found["gathered from one"] == [(1, [])]


def test_a_process_alone_is_its_own_worker() -> None:
    workers = Workers()
    assert (workers.rank, workers.count) == (0, 1)
    assert workers.all_gather([(2, [1.0]), (0, [3.0])]) == [(0, [3.0]), (2, [1.0])]
    assert float(workers.all_reduce(torch.tensor(2.0))) == 2.0


# -- trouble ----------------------------------------------------------------------------------------------


def sharded(rank: int, wrapper: str) -> str:
    model = WRAPPERS[wrapper](make(network))
    try:
        with assert_untouched(model):
            Objective(model, squares, share(data(4)), group=dist.group.WORLD).loss()
    except ValueError as refusal:
        return str(refusal)
    return "no error"


@pytest.mark.parametrize("wrapper", ["fsdp-root", "fsdp-layers"])
def test_sharded_models_are_refused_with_what_to_do(pair: Pair, wrapper: str) -> None:
    for message in pair.run(sharded, wrapper):
        assert "sharded (FSDP2)" in message
        assert "unsharded copy" in message


def sharded_the_old_way(rank: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        model = FullyShardedDataParallel(make(network), device_id=torch.device("cpu"), use_orig_params=True)
    try:
        Objective(model, squares, share(data(4)), group=dist.group.WORLD).loss()
    except ValueError as refusal:
        return str(refusal)
    return "no error"


def test_models_sharded_the_old_way_are_refused_too(pair: Pair) -> None:
    assert all("sharded" in message for message in pair.run(sharded_the_old_way))


def troubled(rank: int, trouble: str) -> str:
    """What is said to a worker of which only the second has trouble, and whether it can go on."""
    batches = share(data(4))
    if rank == 1 and trouble == "nan":
        batches[0][0][0, 0] = float("nan")
    noise = rank == 1 and trouble == "noise"
    model = DistributedDataParallel(make(network))

    def forward(m: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return m(batch[0]) * (1 + 0.1 * torch.rand(()) * noise), batch[1]

    objective = Objective(model, squares, batches, group=dist.group.WORLD, forward=forward)
    try:
        objective.loss()
    except (NotFinite, ValueError) as refusal:
        return type(refusal).__name__
    return "no error"


@pytest.mark.parametrize(("trouble", "error"), [("nan", "NotFinite"), ("noise", "ValueError")])
def test_trouble_on_one_worker_stops_both(pair: Pair, trouble: str, error: str) -> None:
    """The other one would wait for its sums for ever."""
    assert pair.run(troubled, trouble) == [error] * WORLD
