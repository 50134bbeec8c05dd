"""Methods that look at some rows only: workers choose among their own rows, and gradients are averaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

import steppe
from steppe import Method, SharpnessAware

from .naive import NAIVE, mask_of, naively
from .pair import WORLD, Pair
from .problems import BASES, STEPS, WHOLE_BATCH, WRAPPERS, assert_bitwise, assert_same, batch, losses, make, network
from .problems import weights as weights_of

OWN_ROWS: dict[str, Callable[[], Method]] = {
    "agnostic-sam": lambda: steppe.method("agnostic-sam", rho=0.1, held_out_rho=0.05),
    "agnostic-sam-simple": lambda: steppe.method("agnostic-sam-simple", rho=0.1, held_out_rho=0.05),
    "esam": lambda: steppe.method("esam", rho=0.1),
    "m-sam": lambda: steppe.method("m-sam", rho=0.1, parts=2),
    "sharpbalance": lambda: steppe.method("sharpbalance", rho=0.1),
    "ssam-f": lambda: steppe.method("ssam-f", rho=0.1, samples=3, every=2),
}
NEEDS_OWN_GRADIENTS = ("sharpbalance", "ssam-f")  # which FSDP2 does not keep


@cache
def expected(name: str) -> dict[str, Tensor]:
    return naively(NAIVE[name]())


def on_worker(rank: int, name: str, wrapper: str) -> dict[str, Tensor]:
    model = WRAPPERS[wrapper](make(network))
    opt = SharpnessAware(BASES["sgd"](model), OWN_ROWS[name](), model=model)
    for step in range(STEPS):
        x, y = batch(step, rank, WORLD)
        mask = mask_of(step, rank) if name == "sharpbalance" else None
        opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))), mask=mask)
    return weights_of(model)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        (name, wrapper)
        for name in OWN_ROWS
        for wrapper in ("ddp", "ddp-bucket-view", "fsdp-layers")
        if not (wrapper.startswith("fsdp") and name in NEEDS_OWN_GRADIENTS)
    ],
)
def test_workers_choose_among_their_own_rows(pair: Pair, name: str, wrapper: str) -> None:
    first, second = pair.run(on_worker, name, wrapper)
    assert_bitwise(first, second)
    assert_same(first, expected(name))


def test_the_guide_names_the_methods_that_choose_rows_on_each_worker() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides.md").read_text(encoding="utf-8")
    named = text.split("Methods that select samples (")[1].split(")")[0]
    assert set(re.findall(r"`([a-z-]+)`", named)) == set(OWN_ROWS)


def test_every_named_method_is_run_on_two_workers() -> None:
    assert set(steppe.METHODS) <= {*WHOLE_BATCH, *OWN_ROWS}
