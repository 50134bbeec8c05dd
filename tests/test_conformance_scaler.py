"""Laws of torch.amp.GradScaler: with it equals without it, and an overflow in any pass leaves no trace."""

from __future__ import annotations

import pytest
import torch
from registry import Entry, Run, obeying, same
from torch import Tensor

STEPS = 4


def scaler(scale: float = 2.0**8) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


@pytest.mark.parametrize("by", ["closure", "passes"])
@pytest.mark.parametrize("base", ["sgd", "adamw"])
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


@pytest.mark.parametrize("by", ["closure", "passes"])
@obeying()
def test_an_overflow_in_any_pass_leaves_no_trace(entry: Entry, by: str) -> None:
    """Weights, optimizer state, memory and step counter stay; the scale backs off; the next step is as if never."""
    run = Run(entry, "adamw", dtype=torch.float32, norm="layer", scaler=scaler())
    twin = Run(entry, "adamw", dtype=torch.float32, norm="layer")
    for i in range(2):
        run.step(i, by=by)
        run.opt.scaler.update()
        twin.step(i, by=by)
    before = run.everything()
    for bad in range(run.method.cost(2)):
        scale = run.opt.scaler.get_scale()

        def overflow(number: int, loss: Tensor) -> Tensor:
            return loss * torch.inf if number == bad else loss

        run.step(2, by=by, meddle=overflow)
        run.opt.scaler.update()
        same(run.everything(), before)
        assert run.opt.scaler.get_scale() == scale / 2
    for i in range(2, STEPS):
        run.step(i, by=by)
        run.opt.scaler.update()
        twin.step(i, by=by)
    same(run.everything(), twin.everything())


@obeying()
def test_a_disabled_scaler_is_none(entry: Entry) -> None:
    run = Run(entry, scaler=torch.amp.GradScaler("cpu", enabled=False))
    without = Run(entry)
    for i in range(2):
        run.step(i)
        run.opt.scaler.update()
        without.step(i)
    same(run.everything(), without.everything())
