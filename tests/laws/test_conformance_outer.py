"""Laws for what stands around a step: autocast, maximize, gradients that others left, huge and tiny gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from registry import ENTRIES, Entry, Run, batch, copied, obeying, same
from torch import Tensor, nn
from torch.nn import functional as F

import steppe

STEPS = 3


def autocast(on: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


def cast_run(entry: Entry, by: str, outer: AbstractContextManager[Any], inner: bool) -> Run:
    """Some steps with forward passes in bfloat16, by an autocast outside the step or inside each pass."""
    run = Run(entry, dtype=torch.float32)
    forward = run.model.forward

    def cast(x: Tensor) -> Tensor:
        with autocast(True) if inner else nullcontext():
            return forward(x).float()

    run.model.forward = cast  # type: ignore[method-assign]
    with outer:
        for i in range(STEPS):
            run.step(i, by=by)
    return run


@pytest.mark.parametrize("by", ["closure", "passes"])
@pytest.mark.parametrize("outside", [True, False])
@obeying()
def test_an_outer_autocast_is_an_inner_one(entry: Entry, outside: bool, by: str) -> None:
    """torch keeps the cast weights until the outermost autocast ends, and a pass must not see those of another."""
    expected = cast_run(entry, by, nullcontext(), inner=True)
    found = cast_run(entry, by, autocast(outside), inner=not outside)
    # autocast outside also covers the loss, which it computes in float32 all the same
    same(found.weights(), expected.weights())


def maximized(entry: Entry, base: str, maximize: bool) -> Run:
    run = Run(entry, base)
    for group in run.opt.param_groups:
        group["maximize"] = maximize
    for i in range(STEPS):
        run.step(i, by="passes" if i else "closure", meddle=lambda _, loss: -loss if maximize else loss)
    return run


@pytest.mark.parametrize("base", ["sgd", "adamw"])
@obeying()
def test_maximising_minus_the_loss_is_minimising_it(entry: Entry, base: str) -> None:
    up, down = maximized(entry, base, True), maximized(entry, base, False)
    same(up.weights(), down.weights())
    for group in up.opt.param_groups:
        group["maximize"] = False
    same(up.everything(), down.everything())


def test_maximising_leaves_the_gradient_of_the_callers_loss() -> None:
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.1, maximize=True), rho=5.0)
    for pass_ in opt.passes():
        pass_.backward(-w.square().sum() / 2)
    torch.testing.assert_close(w.grad, torch.tensor([-6.0, -8.0]))  # at w + 5 w / |w|: where -L is worst


def test_groups_with_different_objectives_are_refused() -> None:
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    base = torch.optim.SGD([{"params": [one], "maximize": True}, {"params": [two]}], lr=0.1)
    with pytest.raises(ValueError, match="maximize"):
        steppe.sam(base).step(lambda pass_: pass_.backward((one * two).sum()))


@obeying()
def test_gradients_that_were_accumulated_before_a_closure_are_not_lost(entry: Entry) -> None:
    run = Run(entry)
    run.step(0)
    run.step(1)  # what a step leaves is no accumulation
    x, y = batch(7)
    F.cross_entropy(run.model(x), y).backward()
    before, grads = run.everything(), copied([p.grad for p in run.model.parameters()])
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"for pass_ in opt\.passes\(\)"):
            run.step(2)
        same(run.everything(), before)
        same([p.grad for p in run.model.parameters()], grads)
    run.opt.zero_grad()
    run.step(2)


@pytest.mark.parametrize("to_none", [True, False])
def test_cleared_gradients_are_no_accumulation(to_none: bool) -> None:
    run = Run(next(e for e in ENTRIES if e.name == "sam"))
    for i in range(3):
        run.step(i)
        run.opt.zero_grad(set_to_none=to_none)


def test_lightnings_accumulation_is_refused() -> None:
    """It calls the closure alone for all micro-batches but the last, and `step(closure)` then."""
    run = Run(next(e for e in ENTRIES if e.name == "sam"), dropout=0.0)

    def closure() -> Tensor:
        loss = F.cross_entropy(run.model(batch(0)[0]), batch(0)[1]) / 2
        loss.backward()
        return loss

    closure()
    before = run.everything()
    with pytest.raises(RuntimeError, match="micro_batches"):
        run.opt.step(closure)
    same(run.everything(), before)


@obeying()
def test_a_closure_does_not_replace_a_plan_that_waits(entry: Entry) -> None:
    run, twin = Run(entry), Run(entry)
    for each in (run, twin):
        each.step(0)
        for pass_ in each.opt.passes(**each.extras(1)):
            pass_.backward(each.loss(pass_, 1))
    before = run.everything()
    with pytest.raises(RuntimeError, match=r"opt\.step\(\).*opt\.zero_grad\(\)"):
        run.step(2)
    same(run.everything(), before)
    run.opt.step()
    twin.opt.step()
    same(run.everything(), twin.everything())


def test_statistics_that_were_loaded_since_are_not_overwritten_by_a_plan_that_is_dropped() -> None:
    run = Run(next(e for e in ENTRIES if e.name == "sam"))
    run.step(0)
    for pass_ in run.opt.passes():
        pass_.backward(run.loss(pass_, 1))
    loaded = {k: v + 1 if v.is_floating_point() else v for k, v in run.weights().items()}
    run.model.load_state_dict(loaded)
    run.opt.zero_grad()
    same(run.weights(), loaded)


SIZES = [2.0**-83, 2.0**66]  # 1e-25 and 7e19: squares vanish or overflow in float32
# what they do depends on the size of the gradient, or of the learning rate
UNLIKE = ("sam-unnormalised", "sa-sam", "rsam", "bsam", "universal-sam", "trace-sam", "frob-sam", "det-sam")


@pytest.mark.parametrize("size", SIZES)
@obeying(only=lambda e: e.name not in UNLIKE)
def test_gradients_may_be_huge_or_tiny(entry: Entry, size: float) -> None:
    """A step on a multiple of the loss is the step on the loss, at that part of the learning rate."""
    weights = []
    for factor in (1.0, size):
        run = Run(entry, "bare", dtype=torch.float32)
        for group in run.opt.param_groups:
            group["lr"] = 0.1 / factor
        run.step(0, meddle=lambda _, loss, factor=factor: loss * factor)
        weights.append(run.weights())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_the_displacement_of_a_huge_or_tiny_gradient_is_rho(size: float) -> None:
    w = nn.Parameter(torch.ones(1000))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.0), rho=0.5, record=True)
    for pass_ in opt.passes():
        moved = float((w.detach() - 1).norm())
        pass_.backward(w.sum() * size)
    assert moved == pytest.approx(0.5, rel=1e-4)
    opt.step()


def test_a_direction_that_overflows_on_its_own_is_refused() -> None:
    """Though all gradients are finite."""
    w = nn.Parameter(torch.ones(3))
    before = w.detach().clone()
    opt = steppe.build("looksam", torch.optim.SGD([w], lr=0.1), rho=0.5, alpha=1e30, k=2)
    for size in (1.0, 1e20):
        step = lambda pass_, size=size: pass_.backward((w.square() * torch.arange(3)).sum() * size)  # noqa: E731
        if size == 1.0:
            opt.step(step)
            before = w.detach().clone()
        else:
            with pytest.raises(FloatingPointError):
                opt.step(step)
    same(w.detach(), before)


def test_frozen_parameters_alone_are_refused() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    with pytest.raises(ValueError, match="no parameter of the optimizer requires a gradient"):
        opt.step(lambda pass_: pass_.backward(model(torch.ones(1, 3)).sum()))
