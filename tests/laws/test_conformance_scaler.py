"""Laws of torch.amp.GradScaler: with it equals without it, and an overflow in any pass leaves no trace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from registry import ENTRIES, Entry, Run, copied, obeying, same
from torch import Tensor, nn

import steppe

STEPS = 4
Meddle = Callable[[int, Tensor], Tensor]


def scaler(scale: float = 2.0**8) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


@pytest.mark.parametrize(("base", "by"), [("sgd", "passes"), ("adamw", "closure")])
@obeying()
def test_a_scale_changes_nothing(entry: Entry, base: str, by: str) -> None:
    """Powers of two commute with rounding, so this is bitwise in float32."""
    with_scaler = Run(entry, base, dtype=torch.float32, scaler=scaler())
    without = Run(entry, base, dtype=torch.float32)
    for i in range(STEPS):
        with_scaler.step(i, by=by)
        with_scaler.opt.scaler.update()
        without.step(i, by=by)
    same(with_scaler.everything(), without.everything())
    assert with_scaler.opt.scaler.get_scale() == 2.0**8


def stepped(run: Run, number: int, loop: str, meddle: Meddle = lambda _, loss: loss) -> None:
    """One step with a scaler, in one of the loops that people write."""
    opt, scaler = run.opt, run.opt.scaler
    torch.default_generator.manual_seed(number)
    run.seen = []

    def closure(pass_: Any) -> Tensor:
        loss = meddle(len(run.seen), run.loss(pass_, number))
        pass_.backward(loss)
        return loss.detach().mean()

    if loop == "step(closure)":
        opt.step(closure, held_out=closure, **run.extras(number))
    elif loop == "scaler.step(closure)":
        scaler.step(opt, closure, held_out=closure, **run.extras(number))
    else:
        for pass_ in opt.passes(**run.extras(number)):
            closure(pass_)
        if "unscale_" in loop:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(run.model.parameters(), CLIP)
        scaler.step(opt) if "scaler.step" in loop else opt.step()
    scaler.update()


LOOPS = ["step(closure)", "scaler.step(closure)", "opt.step", "scaler.step", "unscale_, scaler.step", "unscale_, opt"]
CLIP = 0.05  # of gradients that are not scaled
loops = pytest.mark.parametrize("loop", LOOPS)


@pytest.mark.sampled(16)
@loops
@obeying()
def test_gradients_are_unscaled_in_every_kind_of_loop(entry: Entry, loop: str) -> None:
    run, twin = Run(entry, dtype=torch.float32, scaler=scaler(2.0**16)), Run(entry, dtype=torch.float32)
    for i in range(STEPS):
        stepped(run, i, loop)
        if "closure" in loop:
            twin.step(i)
            continue
        torch.default_generator.manual_seed(i)
        for pass_ in twin.opt.passes(**twin.extras(i)):
            pass_.backward(twin.loss(pass_, i))
        nn.utils.clip_grad_norm_(twin.model.parameters(), CLIP)
        twin.opt.step()
    same(run.everything(), twin.everything())


@obeying()
def test_a_loss_that_is_scaled_twice_or_not_at_all_is_refused(entry: Entry) -> None:
    """Every gradient is divided by the scale once."""
    run, twin = Run(entry, scaler=scaler()), Run(entry, scaler=scaler())
    for each in (run, twin):
        stepped(each, 0, "scaler.step")
    before = run.everything()
    with pytest.raises(RuntimeError, match=r"write pass_\.backward\(loss\)"):
        stepped(run, 1, "scaler.step", lambda _, loss: run.opt.scaler.scale(loss))

    def unscaled(pass_: Any) -> Tensor:
        loss = run.loss(pass_, 1).mean()
        if pass_.probe.grad:
            loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=r"without the scaler of SharpnessAware"):
        run.opt.step(unscaled, held_out=unscaled, **run.extras(1))
    same(run.everything(), before)
    for each in (run, twin):
        stepped(each, 2, "scaler.step")
    same(run.everything(), twin.everything())


@pytest.mark.parametrize(
    "copied_", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_optimizer_and_scaler_skips_overflows_too(copied_: Any) -> None:
    run = Run(ENTRIES[1], "adamw", dtype=torch.float32, scaler=scaler())
    stepped(run, 0, "scaler.step")
    twin = Run(ENTRIES[1])
    twin.model, twin.opt = copied_((run.model, run.opt))
    for each in (run, twin):
        before = copied(each.everything())
        each.dtype = torch.float32
        stepped(each, 1, "scaler.step", lambda number, loss: loss * (torch.inf if number == 1 else 1))
        same(each.everything(), before)
        assert each.opt.scaler.get_scale() == 2.0**7
        stepped(each, 2, "scaler.step")
    same(run.everything(), twin.everything())


@pytest.mark.parametrize("given", [None, torch.amp.GradScaler("cpu", enabled=False)], ids=["none", "disabled"])
def test_a_scaler_that_the_optimizer_does_not_have_is_refused(given: Any) -> None:
    """A method may compare losses or gradients with something that does not scale; a disabled one does nothing."""
    run = Run(ENTRIES[1], scaler=given)
    theirs = scaler()
    for pass_ in run.opt.passes():
        pass_.backward(theirs.scale(run.loss(pass_, 0)))
    before = run.everything()
    with pytest.raises(RuntimeError, match=r"SharpnessAware\(\.\.\., scaler=scaler\)"):
        theirs.step(run.opt)
    same(run.everything(), before)
    torch.amp.GradScaler("cpu", enabled=False).step(run.opt)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("loop", "norm"), [*((loop, None) for loop in LOOPS), ("step(closure)", "layer")])
@obeying()
def test_an_overflow_in_any_pass_leaves_no_trace(entry: Entry, loop: str, norm: str | None) -> None:
    """Weights, statistics, optimizer state, memory and counter stay; the scale backs off; the next step is as if never.

    It overflows in the forward pass, before the normalisation, as half precision does.
    """
    if norm == entry.norm:
        pytest.skip("the same as without a norm of its own")
    run = Run(entry, "adamw", dtype=torch.float32, norm=norm, scaler=scaler())
    twin = Run(entry, "adamw", dtype=torch.float32, norm=norm, scaler=scaler())
    for i in range(2):
        stepped(run, i, loop)
        stepped(twin, i, loop)
    before = run.everything()
    for bad in range(run.case.passes(2)):
        scale = run.opt.scaler.get_scale()
        first, calls = run.model.first.forward, count()
        run.model.first.forward = lambda x, bad=bad, calls=calls, first=first: first(
            x * torch.inf if next(calls) == bad else x
        )
        stepped(run, 2, loop)
        run.model.first.forward = first
        same(run.everything(), before)
        assert run.opt.scaler.get_scale() == scale / 2
    for i in range(2, STEPS):
        stepped(run, i, loop)
        stepped(twin, i, loop)
    same(run.everything(), twin.everything())


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_overflow_in_one_micro_step_skips_all_of_them(bad: int) -> None:
    run = Run(ENTRIES[1], dtype=torch.float32, scaler=scaler())
    stepped(run, 0, "scaler.step")
    before = run.everything()
    for micro in range(3):
        for pass_ in run.opt.passes(accumulate=True):
            pass_.backward(run.loss(pass_, micro) * (torch.inf if micro == bad else 1.0))
    run.opt.scaler.step(run.opt)
    run.opt.scaler.update()
    same(run.everything(), before)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("where", ["pre-hook", "state", "post-hook"])
@obeying()
def test_a_failure_after_the_last_pass_leaves_no_trace(entry: Entry, where: str) -> None:
    """Or all of the step, if the base had taken it already."""

    def fail(*_: Any) -> None:
        raise MemoryError

    run, twin = Run(entry), Run(entry)
    run.step(0)
    twin.step(0)
    before = run.everything()
    if where == "state":
        run.base.step, step = fail, run.base.step  # type: ignore[method-assign]
    else:
        hook = getattr(run.base, f"register_step_{where.replace('-', '_')}")(fail)
    with pytest.raises(MemoryError):
        run.step(1)
    if where == "state":
        run.base.step = step  # type: ignore[method-assign]
    else:
        hook.remove()
    if where == "post-hook":
        twin.step(1)
        same(run.weights(), twin.weights())
        return
    same(run.everything(), before)
    run.step(1)
    twin.step(1)
    same(run.everything(), twin.everything())


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", ["none", "sam", "gsam", "m-sam"])
def test_sparse_gradients_are_unscaled_too(name: str, maximize: bool) -> None:
    """Of an embedding, whose rows the base optimizer gets as a sparse tensor."""
    ends = []
    for scale in (None, 2.0**16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))
        base = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
        opt = steppe.build(name, base, model=model, scaler=None if scale is None else scaler(scale))
        rows = torch.tensor([[0, 1], [2, 5], [4, 3]])  # each once: sums of several would round in another order
        for _ in range(2):
            for pass_ in opt.passes():
                loss = model(pass_.rows(rows)).square().mean()
                pass_.backward(-loss if maximize else loss)
            opt.step()
            assert model[0].weight.grad.is_sparse
            if opt.scaler is not None:
                opt.scaler.update()
        ends.append(copied(model.state_dict()))
    same(*ends)


@obeying()
def test_a_disabled_scaler_is_none(entry: Entry) -> None:
    run = Run(entry, scaler=torch.amp.GradScaler("cpu", enabled=False))
    without = Run(entry)
    for i in range(2):
        run.step(i)
        run.opt.scaler.update()
        without.step(i)
    same(run.everything(), without.everything())
