"""m-sharpness over workers: each follows the method on its own data, and only the results are averaged."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe import SAM, Method, PerPart, PerWorker, SharpBalance, SharpnessAware

from . import problems
from .pair import WORLD, Pair
from .problems import BASES, ROWS, WRAPPERS, assert_bitwise, assert_same, batch, losses, make, network, train, weights

EACH = ROWS // WORLD
INNER: dict[str, Callable[[], Method]] = {
    "sam": lambda: SAM(0.1),
    "sam-linf": lambda: steppe.method("sam", rho=0.02, p=float("inf")),
    "gsam": lambda: steppe.GSAM(0.1),
    "frob-sam": lambda: steppe.FrobSAM(rho=0.05),
}


@cache
def per_part(name: str, model: str) -> dict[str, Tensor]:
    return train(PerPart(INNER[name](), WORLD), model=getattr(problems, model))


def on_worker(rank: int, name: str, wrapper: str, model: str) -> dict[str, Tensor]:
    return train(PerWorker(INNER[name]()), wrapper, getattr(problems, model), rank, WORLD)


@pytest.mark.parametrize(
    ("name", "wrapper", "model"),
    [
        *((name, wrapper, "network") for name in INNER for wrapper in ("ddp", "ddp-bucket-view")),
        ("sam", "ddp-unused", "network"),
        ("gsam", "ddp-bucket-view", "single_parameter"),
        ("gsam", "ddp", "channels_last"),  # gradients that are not contiguous are averaged too
    ],
)
def test_per_worker_is_per_part_of_the_whole_batch(pair: Pair, name: str, wrapper: str, model: str) -> None:
    first, second = pair.run(on_worker, name, wrapper, model)
    assert_bitwise(first, second)
    assert_same(first, per_part(name, model))


def gradients_of_passes(rank: int, wrapper: str) -> list[list[Tensor]]:
    model = WRAPPERS[wrapper](make(network))
    opt = SharpnessAware(BASES["sgd"](model), PerWorker(SAM(0.1)), model=model)
    x, y = batch(0, rank, WORLD)
    seen = []
    for pass_ in opt.passes():
        pass_.backward(losses(model, x, y).mean())
        seen.append([p.grad.clone() for p in model.parameters()])
    return [*seen, [p.grad.clone() for p in model.parameters()]]


@pytest.mark.parametrize("wrapper", ["ddp", "ddp-bucket-view"])
def test_no_gradient_is_averaged_before_the_end(pair: Pair, wrapper: str) -> None:
    first, second = pair.run(gradients_of_passes, wrapper)
    for rank, passes in enumerate((first, second)):
        model = make(network)
        own = torch.autograd.grad(losses(model, *batch(0, rank, WORLD)).mean(), list(model.parameters()))
        torch.testing.assert_close(passes[0], list(own), rtol=1e-10, atol=1e-12)
    for here, there in zip(first[:2], second[:2], strict=True):
        assert not any(torch.allclose(a, b) for a, b in zip(here, there, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first[2], second[2], strict=True))
    mean = [(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)]
    torch.testing.assert_close(first[2], mean, rtol=1e-10, atol=1e-12)


# What a method keeps or sets from a worker's own gradients must not take the workers apart.
KEEPERS: dict[str, Callable[[], Method]] = {
    "SASAM": steppe.SASAM,
    "SASGD": steppe.SASGD,
    "LookSAM": lambda: steppe.LookSAM(k=2),
    "DynamicSparseSAM": lambda: steppe.DynamicSparseSAM(every=2),
    "FisherSparseSAM": lambda: steppe.FisherSparseSAM(samples=1, every=3),
}


def keeping(rank: int, combinator: type, name: str) -> str | dict[str, Tensor]:
    model: nn.Module = WRAPPERS["ddp"](make(network))
    sharp = [(0, 2), (1, 3), (2, 0)]
    try:
        opt = SharpnessAware(BASES["sgd"](model), combinator(KEEPERS[name]()), model=model)
        for step, counts in enumerate(sharp):
            x, y = batch(step, rank, WORLD)
            mask = torch.arange(EACH) < counts[rank]
            opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))), mask=mask)
    except (TypeError, ValueError) as refusal:
        return str(refusal)
    return weights(model)


@pytest.mark.parametrize("name", KEEPERS)
@pytest.mark.parametrize("combinator", [PerWorker, SharpBalance])
def test_workers_stay_together_or_are_refused(pair: Pair, combinator: type, name: str) -> None:
    outcomes = pair.run(keeping, combinator, name)
    if any(isinstance(outcome, str) for outcome in outcomes):
        assert all(name in message for message in outcomes)
    else:
        assert_bitwise(*outcomes)
