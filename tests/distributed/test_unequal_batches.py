"""Workers whose local batches differ in size or number: replicas stay bitwise equal, or a step is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import registry
import torch
from registry import ENTRIES, Entry, Run, obeying, same
from torch import Tensor, nn
from torch.distributed.algorithms import Join
from torch.nn import functional as F

import steppe
from steppe import SAM, Every, Method, PerPart, PerWorker, SharpBalance, SharpnessAware

from .naive import Gradient, averaged, gradient_at, steepest
from .pair import WORLD, Pair
from .problems import (
    BASES,
    WRAPPERS,
    advance,
    assert_bitwise,
    assert_same,
    batch,
    losses,
    make,
    network,
    state_of,
    statistics_of,
    weights,
)
from .problems import with_batch_norm as batch_norm_network

SIZES = [(5, 4), (3, 6)]  # rows of the two workers
STEPS = 4  # of methods that do something else at every third step at most
MASKED_STEPS = 10  # until no row is marked

COMPOSED = [
    Entry("per-part-of-per-worker", lambda: PerPart(PerWorker(SAM(0.5)))),
    Entry("per-part-of-every-other-per-worker", lambda: PerPart(Every(2, SAM(0.5), PerWorker(SAM(0.5))))),
    Entry("per-part-of-esam", lambda: PerPart(steppe.ESAM(0.5)), unreduced=True),
    Entry("per-part-of-frob-sam", lambda: PerPart(steppe.FrobSAM(0.1))),
    Entry("per-worker-of-per-part", lambda: PerWorker(PerPart(SAM(0.5)))),
    Entry("sharpbalance-of-per-worker", lambda: SharpBalance(PerWorker(SAM(0.5))), masked=True),
    Entry("every-third-unmasked", lambda: Every(3, SAM(0.5), SharpBalance(SAM(0.5))), masked=True),
]
KNOWN = {entry.name: entry for entry in [*ENTRIES, *COMPOSED]}


class Worker(Run):
    """A run on this worker's rows of each batch."""

    def __init__(self, name: str, wrapper: str, rank: int, sizes: tuple[int, int]):
        # LayerNorm throughout: some passes are on a single row
        super().__init__(KNOWN[name], norm="layer", wrap=WRAPPERS[wrapper])
        self.mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    def extras(self, number: int) -> dict[str, Any]:
        """All rows sharp at first, then only some of a worker's, then none."""
        return {"mask": (torch.arange(registry.ROWS) >= number)[self.mine]} if self.case.masked else {}

    def loss(self, pass_: Any, number: int) -> Tensor:
        x, y = (t[self.mine] for t in registry.batch(number + 500 if pass_.held_out else number, self.dtype))
        x, y = (x, y) if pass_.held_out else pass_.rows(x, y)
        return F.cross_entropy(self.model(x), y, reduction="none" if self.case.unreduced else "mean")

    def trained(self, steps: int | None = None) -> dict[str, Any]:
        for number in range(steps or (MASKED_STEPS if self.case.masked else STEPS)):
            self.step(number)
        return self.everything()


def trained(rank: int, name: str, wrapper: str) -> list[dict[str, Any]]:
    return [Worker(name, wrapper, rank, sizes).trained() for sizes in SIZES]


@pytest.mark.sampled(6)
@obeying()
def test_replicas_stay_bitwise_equal(pair: Pair, entry: Entry) -> None:
    same(*pair.run(trained, entry.name, "ddp"))


@pytest.mark.parametrize("name", [entry.name for entry in COMPOSED])
def test_replicas_of_composed_methods_stay_bitwise_equal(pair: Pair, name: str) -> None:
    same(*pair.run(trained, name, "ddp"))


def unwrapped(rank: int, name: str) -> list[dict[str, Any]]:
    return [Worker(name, "alone", rank, sizes).trained()["model"] for sizes in SIZES]


def test_workers_on_their_own_would_differ(pair: Pair) -> None:
    """Else equality would say nothing."""
    first, second = pair.run(unwrapped, "sam")
    for a, b in zip(first, second, strict=True):
        assert not any(torch.allclose(x, b[name]) for name, x in a.items())


# -- what the step is ---------------------------------------------------------------------------------


def share(step: int, rank: int, sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """This worker's rows of two batches, which are enough for any sizes here."""
    x, y = (torch.cat(both) for both in zip(batch(step), batch(step + 50), strict=True))
    mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    return x[mine], y[mine]


def mean_of(gradients: list[Gradient]) -> Gradient:
    return averaged(gradients, [1 / len(gradients)] * len(gradients))


def sam_on(model: nn.Module, shares: list[tuple[Tensor, Tensor]]) -> Gradient:
    """Gradients are averaged over workers as DDP does it, whatever the numbers of their rows."""
    up = steepest(mean_of([gradient_at(model, *s) for s in shares]), 0.1)
    return mean_of([gradient_at(model, *s, up) for s in shares])


def per_part(model: nn.Module, shares: list[tuple[Tensor, Tensor]]) -> Gradient:
    """Two parts, weighed by all their rows on all these workers."""
    halves = [(len(x) + 1) // 2 for x, _ in shares]
    first = [(x[:half], y[:half]) for (x, y), half in zip(shares, halves, strict=True)]
    second = [(x[half:], y[half:]) for (x, y), half in zip(shares, halves, strict=True)]
    share_of_first = sum(halves) / sum(len(x) for x, _ in shares)
    return averaged([sam_on(model, first), sam_on(model, second)], [share_of_first, 1 - share_of_first])


BY_HAND: dict[str, tuple[Callable[[], Method], Callable[[nn.Module, list[tuple[Tensor, Tensor]]], Gradient]]] = {
    "m-sam": (lambda: PerPart(SAM(0.1)), per_part),
    "per-worker-of-per-part": (
        lambda: PerWorker(PerPart(SAM(0.1))),
        lambda model, shares: mean_of([per_part(model, [s]) for s in shares]),
    ),
}
BY_HAND_SIZES = [*SIZES, (3, 3), (7, 7)]


def in_parts(rank: int, name: str, wrapper: str) -> list[dict[str, Tensor]]:
    moved = []
    for sizes in BY_HAND_SIZES:
        model = WRAPPERS[wrapper](make(network))
        opt = SharpnessAware(BASES["sgd"](model), BY_HAND[name][0](), model=model)
        for step in range(3):
            x, y = share(step, rank, sizes)
            opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))))
        moved.append(weights(model))
    return moved


@pytest.mark.parametrize(("name", "wrapper"), [(name, "ddp") for name in BY_HAND] + [("m-sam", "fsdp-layers")])
def test_parts_are_weighed_by_their_rows_on_all_workers(pair: Pair, name: str, wrapper: str) -> None:
    outcomes = pair.run(in_parts, name, wrapper)
    for i, sizes in enumerate(BY_HAND_SIZES):
        model = make(network)
        opt = BASES["sgd"](model)
        for step in range(3):
            direction = BY_HAND[name][1](model, [share(step, rank, sizes) for rank in range(WORLD)])
            for p, g in zip(model.parameters(), direction, strict=True):
                p.grad = g
            opt.step()
        assert_bitwise(outcomes[0][i], outcomes[1][i])
        assert_same(outcomes[0][i], weights(model))


def whole_weights(rank: int, name: str, wrapper: str) -> list[dict[str, Tensor]]:
    moved = []
    for sizes in SIZES:
        worker = Worker(name, wrapper, rank, sizes)
        worker.trained(steps=3)
        moved.append(weights(worker.model))
    return moved


@pytest.mark.parametrize("name", ["sam", "m-sam", "frob-sam", "esam"])
def test_shards_of_fsdp_move_as_replicas_do(pair: Pair, name: str) -> None:
    """A worker has one copy of its shard only; but all shards must be moved by the same step."""
    replicas, shards = pair.run(whole_weights, name, "ddp"), pair.run(whole_weights, name, "fsdp-root")
    for replica, sharded in zip(replicas[0] + replicas[1], shards[0] + shards[1], strict=True):
        assert_same(sharded, replica)


# -- modes of DDP that count on other passes ----------------------------------------------------------

JOINS: dict[str, Callable[[Any], Any]] = {
    "Join": lambda model: Join([model]),
    "model.join": lambda model: model.join(),
    "throwing": lambda model: model.join(throw_on_early_termination=True),
}


def joining(rank: int, how: str, by: str) -> dict[str, Any]:
    """Worker 1 has a batch more than worker 0, whose data has run out when it leaves the block."""
    model: Any = WRAPPERS["ddp"](make(batch_norm_network))
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model)
    advance(opt, model, range(2), rank, WORLD)
    seen: dict[str, Any] = {"before": state_of(opt, model) | statistics_of(model), "messages": []}
    for attempt in range(2):  # torch leaves Join on when its block ends
        try:
            if attempt == 0:
                with JOINS[how](model):
                    _steps(by, opt, model, rank, 2 + rank)
            else:
                _steps(by, opt, model, rank, 1)
        except RuntimeError as refusal:
            seen["messages"].append(str(refusal))
    seen["after"] = state_of(opt, model) | statistics_of(model)
    model.join(enable=False)
    advance(opt, model, range(2, 4), rank, WORLD)
    return seen | {"final": weights(model)}


def _steps(by: str, opt: SharpnessAware, model: nn.Module, rank: int, count: int) -> None:
    if by == "closure":
        advance(opt, model, range(count), rank, WORLD)
        return
    for step in range(count):
        x, y = batch(step, rank, WORLD)
        for pass_ in opt.passes():
            pass_.backward(losses(model, x, y).mean())
        opt.step()


def without_join(rank: int) -> dict[str, Tensor]:
    model = WRAPPERS["ddp"](make(batch_norm_network))
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model)
    advance(opt, model, range(4), rank, WORLD)
    return weights(model)


@pytest.mark.parametrize(("how", "by"), [("Join", "closure"), ("model.join", "passes"), ("throwing", "closure")])
def test_join_is_refused_before_anything_moves(pair: Pair, how: str, by: str) -> None:
    expected = pair.run(without_join)
    for seen, final in zip(pair.run(joining, how, by), expected, strict=True):
        assert len(seen["messages"]) == 2
        for message in seen["messages"]:
            assert "Join" in message
            assert "same number of batches" in message
            assert "join(enable=False)" in message
        assert_bitwise(seen["after"], seen["before"])
        assert_bitwise(seen["final"], final)


@pytest.mark.parametrize("name", ["sam", "ssam-f", "every-third-unmasked"])
def test_a_static_graph_is_as_good_where_its_first_pass_is_averaged(pair: Pair, name: str) -> None:
    for static, plain in zip(pair.run(trained, name, "ddp-static"), pair.run(trained, name, "ddp"), strict=True):
        same(static, plain)


OWN_FIRST: dict[str, Callable[[], Method]] = {
    "sharpbalance": lambda: SharpBalance(SAM(0.1)),
    "per-worker": lambda: PerWorker(SAM(0.1)),
    "per-worker-rsam": lambda: PerWorker(steppe.RSAM(0.1)),
}


def static(rank: int) -> dict[str, dict[str, Any]]:
    outcomes = {}
    for name, method in OWN_FIRST.items():
        model = WRAPPERS["ddp-static"](make(batch_norm_network))
        opt = SharpnessAware(BASES["sgd"](model), method(), model=model)
        x, y = batch(0, rank, WORLD)
        outcomes[name] = {"before": state_of(opt, model) | statistics_of(model), "message": ""}
        try:
            opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))), mask=torch.arange(len(x)) > rank)
        except RuntimeError as refusal:
            outcomes[name]["message"] = str(refusal)
        outcomes[name]["after"] = state_of(opt, model) | statistics_of(model)
    return outcomes


def test_a_static_graph_whose_first_pass_is_not_averaged_is_refused(pair: Pair) -> None:
    """A mask's passes never are: each worker has its own share of sharp rows."""
    for outcomes in pair.run(static):
        for name, seen in outcomes.items():
            assert "static_graph" in seen["message"], name
            assert "without" in seen["message"], name
            assert_bitwise(seen["after"], seen["before"])
