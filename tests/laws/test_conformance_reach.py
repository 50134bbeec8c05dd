"""Laws of missing gradients: zero ones are harmless, and a parameter that no pass reaches is not touched."""

from __future__ import annotations

import pytest
import torch
from registry import STATEFUL, Entry, Run, obeying, same

from steppe.testing import laws


@obeying()
def test_zero_gradients_move_nothing(entry: Entry) -> None:
    laws.zero_gradients_move_nothing(entry)


@obeying()
def test_zero_gradients_in_one_pass_are_harmless(entry: Entry) -> None:
    run = Run(entry)
    run.step(0)
    for bad in range(run.case.passes(1)):
        run.step(1 + bad, meddle=lambda number, loss: loss * 0 if number == bad else loss)
        assert all(p.isfinite().all() for p in run.model.parameters())


@pytest.mark.parametrize("base", STATEFUL)
@obeying()
def test_an_unreached_parameter_is_not_touched(entry: Entry, base: str) -> None:
    """It has no gradient in any pass: as with the base optimizer alone, weight decay must not touch it."""
    run = Run(entry, base, spare=True)
    for i in range(3):
        run.step(i)
        assert run.model.unused.grad is None
        assert run.model.branch.weight.grad is None
    assert torch.equal(run.model.unused, torch.ones_like(run.model.unused))
    fresh = Run(entry, base, spare=True)
    same(dict(run.model.branch.named_parameters()), dict(fresh.model.branch.named_parameters()))


@pytest.mark.parametrize("base", STATEFUL)
@obeying()
def test_a_branch_that_only_some_passes_reach_is_restored(entry: Entry, base: str) -> None:
    """Whichever pass reaches it, alone or all but that one; and it learns from then on."""
    run = Run(entry, base, spare=True)
    run.step(0)
    for lone in (True, False):
        for reached in range(run.case.passes(1)):
            before = {k: v.detach().clone() for k, v in run.model.named_parameters()}
            run.seen = []
            for pass_ in run.opt.passes(**run.extras(1)):
                run.model.branching = (len(run.seen) == reached) is lone
                pass_.backward(run.loss(pass_, 1))
            same(dict(run.model.named_parameters()), before)
            run.opt.step()
            assert all(p.isfinite().all() for p in run.model.parameters())
    run.model.branching = False
    assert torch.equal(run.model.unused, torch.ones_like(run.model.unused))


@pytest.mark.parametrize("base", STATEFUL)
@obeying()
def test_a_branch_that_is_reached_late_learns(entry: Entry, base: str) -> None:
    """A method's memory for it may not hide from the base optimizer that its own state is still to be made."""
    run = Run(entry, base, spare=True)
    for i in range(3):
        run.step(i)
    before = run.model.branch.weight.detach().clone()
    run.model.branching = True
    for i in range(3, 6):
        run.step(i)
    assert not torch.equal(run.model.branch.weight, before)
    assert all(p.isfinite().all() for p in run.model.parameters())


@obeying()
def test_a_branch_that_is_no_longer_reached_stays(entry: Entry) -> None:
    """Displacements of an earlier step may not be taken back again: SGD leaves a parameter without gradient alone."""
    run = Run(entry, spare=True)
    run.model.branching = True
    for i in range(2):
        run.step(i)
    before = run.model.branch.weight.detach().clone()
    run.model.branching = False
    for i in range(2, 5):
        run.step(i)
    assert torch.equal(run.model.branch.weight, before)


@obeying()
def test_frozen_parameters_stay_and_thawed_ones_learn(entry: Entry) -> None:
    laws.frozen_parameters_stay(entry)
