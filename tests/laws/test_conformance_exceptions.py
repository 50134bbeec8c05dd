"""Law: a step that ends early, however it ends, leaves everything bitwise as it was, and the next step works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from registry import Entry, Run, copied, obeying, same
from torch import Tensor

from steppe.testing import laws


class Trouble(Exception):
    """Raised by the caller's own code in the middle of a pass."""


def exploding(at: int, error: type[BaseException], after_backward: bool) -> Callable[[int, Tensor], Tensor]:
    """Raises in pass `at`, with gradients half written if `after_backward`."""

    def meddle(number: int, loss: Tensor) -> Tensor:
        if number == at:
            if after_backward and loss.requires_grad:  # a pass for losses alone has no graph
                loss.mean().backward()
            raise error
        return loss

    return meddle


def warmed_up(entry: Entry, **options: Any) -> tuple[Run, Run, int]:
    """Two equal runs after two steps, and how many passes the next step has."""
    run, twin = Run(entry, "adamw", **options), Run(entry, "adamw", **options)
    for r in (run, twin):
        r.step(0)
        r.step(1)
    return run, twin, run.case.passes(2)


def goes_on(run: Run, twin: Run) -> None:
    """The next steps are those of a run in which nothing happened."""
    for i in (2, 3):
        run.step(i)
        twin.step(i)
    same(run.everything(), twin.everything())


@obeying()
def test_an_exception_in_any_pass_leaves_no_trace(entry: Entry) -> None:
    laws.survives_exceptions(entry)


@obeying()
def test_ctrl_c_in_any_pass_of_a_loop_leaves_no_trace(entry: Entry) -> None:
    run, twin, passes = warmed_up(entry)
    before = run.everything()
    for i in range(passes):
        with pytest.raises(KeyboardInterrupt):
            run.step(2, by="passes", meddle=exploding(i, KeyboardInterrupt, after_backward=i % 2 == 1))
        same(run.everything(), before)
        assert all(p.grad is None for p in run.model.parameters())
    goes_on(run, twin)


@obeying()
def test_an_exception_in_the_very_first_step_leaves_no_trace(entry: Entry) -> None:
    """Nothing is known of the model yet, and no state exists."""
    run, twin = Run(entry), Run(entry)
    before = run.everything()
    for i in range(run.case.passes(0)):
        with pytest.raises(Trouble):
            run.step(0, meddle=exploding(i, Trouble, after_backward=False))
        same(run.everything(), before)
    for r in (run, twin):
        r.step(0)
    goes_on(run, twin)


@obeying()
def test_leaving_the_loop_leaves_no_trace(entry: Entry) -> None:
    """`break` before and after the backward of any pass; the plan is void, so a bare step() is refused."""
    run, twin, passes = warmed_up(entry)
    before = run.everything()
    for i in range(passes):
        for backward in (False, True):
            run.seen = []
            for pass_ in run.opt.passes(**run.extras(2)):
                loss = run.loss(pass_, 2)
                if run.seen[-1].number < i or backward:
                    pass_.backward(loss)
                if run.seen[-1].number == i:
                    break
            same(run.everything(), before)
            with pytest.raises(RuntimeError, match=r"opt\.passes\(\)"):
                run.opt.step()
            same(run.everything(), before)
    goes_on(run, twin)


@obeying()
def test_a_new_step_ends_an_abandoned_one(entry: Entry) -> None:
    """The caller left the loop and kept the iterator: its weights come back before the new step starts."""
    run, twin, passes = warmed_up(entry, dropout=0.0)
    abandoned = run.opt.passes(**run.extras(2))
    run.seen = []
    for _ in range(passes - 1):
        pass_ = next(abandoned)
        pass_.backward(run.loss(pass_, 2))
    next(abandoned)  # now at the last probe's weights
    goes_on(run, twin)
    after = run.everything()
    assert next(abandoned, None) is None
    same(run.everything(), after)


@pytest.mark.parametrize("who", ["wrapper", "base"])
@obeying()
def test_a_failing_base_step_keeps_options_and_memory(entry: Entry, who: str) -> None:
    """A hook that raises between the passes and the update: nothing the plan wanted to keep is kept."""
    run, twin, _ = warmed_up(entry)

    def refuse(*_: Any) -> None:
        raise Trouble

    before = run.everything()
    hook = (run.opt if who == "wrapper" else run.base).register_step_pre_hook(refuse)
    with pytest.raises(Trouble):
        run.step(2)
    hook.remove()
    same({**run.everything()["model"], **_statistics(before)}, before["model"])
    same(run.everything()["optimizer"], before["optimizer"])
    run.model.load_state_dict(before["model"])
    goes_on(run, twin)


def _statistics(everything: dict[str, Any]) -> dict[str, Tensor]:
    return {k: v for k, v in everything["model"].items() if "running_" in k or "num_batches" in k}


@obeying()
def test_a_failing_first_base_step_leaves_the_groups_as_they_were(entry: Entry) -> None:
    run = Run(entry)
    before = copied(run.opt.state_dict()["param_groups"])

    def refuse(*_: Any) -> None:
        raise Trouble

    run.base.register_step_pre_hook(refuse)
    with pytest.raises(Trouble):
        run.step(0)
    same(copied(run.opt.state_dict()["param_groups"]), before)


@obeying()
def test_weights_are_back_before_the_update(entry: Entry) -> None:
    """After the last pass and before step(), the parameters are bitwise the weights, in their own memory."""
    run, _, _ = warmed_up(entry)
    before = {k: v.detach().clone() for k, v in run.model.named_parameters()}
    places = [p.data_ptr() for p in run.model.parameters()]
    torch.default_generator.manual_seed(2)
    for pass_ in run.opt.passes(**run.extras(2)):
        pass_.backward(run.loss(pass_, 2))
    same(dict(run.model.named_parameters()), before)
    assert places == [p.data_ptr() for p in run.model.parameters()]
    assert all(p.grad is not None for p in run.model.parameters())
