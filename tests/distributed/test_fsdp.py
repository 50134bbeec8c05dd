"""What FSDP2 adds: weights that are gathered copies, shards that are empty, gradients that exist only averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import steppe
import steppe.core.draw
from steppe import SAM, Draw, PerWorker, Plan, Probe, SharpnessAware, Space
from steppe.core.probe import Context
from steppe.core.shards import local, shard_like

from . import problems
from .pair import WORLD, Pair
from .problems import (
    BASES,
    STEPS,
    WHOLE_BATCH,
    WRAPPERS,
    advance,
    assert_same,
    batch,
    losses,
    make,
    network,
    shard,
    train,
    weights,
)


def restored(rank: int, methods: list[str]) -> dict[str, bool]:
    """Whether every shard comes back bit for bit from steps of size 0, and no rank holds all of a one-row tensor."""
    back = {}
    for name in methods:
        model = shard(make(network))
        shards = [local(p).detach() for p in model.parameters()]
        assert any(x.numel() == 0 for x in shards) == (rank == 1)
        before = [x.clone() for x in shards]
        opt = SharpnessAware(
            torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9), WHOLE_BATCH[name](), model=model
        )
        advance(opt, model, range(2), rank, WORLD)
        back[name] = all(torch.equal(a, local(p)) for a, p in zip(before, model.parameters(), strict=True))
    return back


def test_every_shard_comes_back_bit_for_bit(pair: Pair) -> None:
    methods = ["sam", "sam-l1", "sam-l3-two-steps", "asam", "frob-sam", "ssam-d", "rsam", "looksam"]
    assert pair.run(restored, methods) == [dict.fromkeys(methods, True)] * WORLD


DRAWS = ("normal", "uniform", "signs")


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of random numbers so small that every tensor spans several of them and few begin with one."""
    block, steppe.core.draw.BLOCK = steppe.core.draw.BLOCK, 7
    try:
        yield
    finally:
        steppe.core.draw.BLOCK = block


def drawn(rank: int, wrapper: str, model: str) -> dict[str, list[Tensor]]:
    params = list(WRAPPERS[wrapper](make(getattr(problems, model))).parameters())
    space = Space(params)
    draw = Draw(space, (3, 1, 4), space.weights(), space.zeros())
    with small_blocks():
        vectors = {"normal": draw.normal(), "uniform": draw.uniform(-2.0, 3.0), "signs": draw.signs()}
    whole = {}
    for name, vector in vectors.items():
        parts = [shard_like(p, x.contiguous()) for p, x in zip(params, vector.tensors, strict=True)]
        whole[name] = [x.full_tensor() if hasattr(x, "full_tensor") else x for x in parts]
    return whole


@pytest.mark.parametrize(
    ("wrapper", "model"),
    [("fsdp-layers", "network"), ("hsdp-replicated", "network"), ("fsdp-columns", "even_matrices"), ("ddp", "network")],
)
def test_a_shard_draws_the_numbers_of_the_whole(pair: Pair, wrapper: str, model: str) -> None:
    expected = drawn(0, "alone", model)
    for whole in pair.run(drawn, wrapper, model):
        for name in DRAWS:
            assert all(torch.equal(a, b) for a, b in zip(whole[name], expected[name], strict=True)), name


def refusals(rank: int) -> dict[str, tuple[str, bool]]:
    messages = {}
    for name, method in {
        "per-worker": PerWorker(SAM()),
        "ssam-f": steppe.method("ssam-f", samples=2),
        "sharpbalance": steppe.method("sharpbalance"),
    }.items():
        model = shard(make(network))
        before = weights(model)
        opt = SharpnessAware(BASES["sgd"](model), method, model=model)
        x, y = batch(0, rank, WORLD)
        try:
            opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))), mask=torch.arange(len(x)) > 1)
            messages[name] = ("", False)
        except RuntimeError as refusal:
            unchanged = all(torch.equal(a, b) for a, b in zip(before.values(), weights(model).values(), strict=True))
            messages[name] = (str(refusal), unchanged)
    return messages


def test_methods_that_need_own_gradients_are_refused_by_name(pair: Pair) -> None:
    for messages in pair.run(refusals):
        for name, (message, unchanged) in messages.items():
            assert "FSDP2" in message, name
            assert "own gradient" in message, name
            assert unchanged, name


# -- a gathered copy of the weights must not outlive a move of their shards ---------------------------


@dataclass(frozen=True)
class LooksAside:
    """Weighs the gradient here by the loss at a random point aside, which it looks at without a backward pass."""

    slots = ()

    def options(self) -> dict[str, Any]:
        return {}

    def cost(self, step: int) -> int:
        return 2

    def plan(self, context: Context) -> Plan:
        aside = yield Probe(at=context.draw(0, context.weights).normal(), grad=False)
        there = yield Probe(at=context.draw(1, context.weights).normal(), grad=False)
        here = yield Probe()
        return here.grad.mul_(1 / (1 + aside.loss + 2 * there.loss))


def looking_aside(rank: int, wrapper: str, told: bool) -> dict[str, Tensor] | str:
    try:
        return train(LooksAside(), wrapper, rank=rank, world=WORLD, told=told)
    except RuntimeError as refusal:
        return str(refusal)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("wrapper", ["fsdp-layers", "fsdp-root"])
def test_a_forward_alone_sees_the_moved_weights(pair: Pair, wrapper: str, told: bool) -> None:
    for moved in pair.run(looking_aside, wrapper, told):
        if isinstance(moved, str):  # letting go of gathered weights takes the model
            assert not told, moved
            assert "model=" in moved
        else:
            assert_same(moved, train(LooksAside(), told=told))


def evaluated_between_steps(rank: int, method: str, wrapper: str) -> dict[str, Tensor]:
    model = WRAPPERS[wrapper](make(network))
    opt = SharpnessAware(BASES["sgd"](model), WHOLE_BATCH[method](), model=model)
    for step in range(STEPS):
        with torch.no_grad():
            model(batch(step)[0])  # FSDP2 keeps the root's weights gathered after this
        advance(opt, model, range(step, step + 1), rank, WORLD)
    return weights(model)


@pytest.mark.parametrize("wrapper", ["fsdp-layers", "fsdp-root"])
@pytest.mark.parametrize("method", ["asam", "rsam", "msam"])
def test_an_evaluation_between_steps_changes_nothing(pair: Pair, method: str, wrapper: str) -> None:
    for moved in pair.run(evaluated_between_steps, method, wrapper):
        assert_same(moved, train(method))


def interrupted(rank: int, wrapper: str, where: str) -> dict[str, Tensor]:
    model = WRAPPERS[wrapper](make(network))
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model)
    advance(opt, model, range(2), rank, WORLD)
    x, y = batch(7, rank, WORLD)
    middle = getattr(model, "module", model)[4]
    passes = []

    def interrupt(*_: Any) -> None:
        if len(passes) == 2:  # at the perturbed weights
            raise KeyboardInterrupt

    def closure() -> Tensor:
        passes.append(where)
        loss = losses(model, x, y).mean()
        if where == "between":
            interrupt()
        loss.backward()
        return loss.detach()

    if where == "forward":
        hook = middle.register_forward_hook(interrupt)
    else:
        hook = middle.register_full_backward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    hook.remove()
    advance(opt, model, range(2, STEPS), rank, WORLD)
    return weights(model)


@pytest.mark.parametrize(
    ("wrapper", "where"),
    [
        *((wrapper, where) for wrapper in ("fsdp-layers", "fsdp-root") for where in ("forward", "between", "backward")),
        ("ddp", "forward"),
        ("ddp", "between"),  # within a backward pass DDP itself does not go on
    ],
)
def test_a_step_interrupted_at_the_perturbed_weights_leaves_no_trace(pair: Pair, wrapper: str, where: str) -> None:
    for moved in pair.run(interrupted, wrapper, where):
        assert_same(moved, train(SAM(0.1)))


# -- the caller's own handling of the gradient --------------------------------------------------------


def clipped(model: nn.Module, rank: int = 0, world: int = 1) -> tuple[dict[str, Tensor], list[float]]:
    """Two micro-batches a pass, the final gradient clipped."""
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model)
    norms = []
    for step in range(STEPS):
        x, y = batch(step, rank, world)
        for pass_ in opt.passes():
            for rows in torch.arange(len(x)).chunk(2):
                pass_.backward(losses(model, x[rows], y[rows]).mean() / 2)
        norm: Any = clip_grad_norm_(model.parameters(), 0.5)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        opt.step()
    return weights(model), norms


def clipped_on_worker(rank: int, wrapper: str) -> tuple[dict[str, Tensor], list[float]]:
    return clipped(WRAPPERS[wrapper](make(network)), rank, WORLD)


@pytest.mark.parametrize("wrapper", ["fsdp-layers", "fsdp-root", "ddp", "ddp-bucket-view"])
def test_micro_batches_and_clipping_of_the_final_gradient(pair: Pair, wrapper: str) -> None:
    expected, norms = clipped(make(network))
    assert max(norms) > 0.5  # else nothing was clipped
    for moved, seen in pair.run(clipped_on_worker, wrapper):
        assert seen == pytest.approx(norms, rel=1e-9)
        assert_same(moved, expected)
