"""What else may happen around a step that is refused: replaced buffers, loaded states, hooks, micro-batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from registry import same
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import steppe
from steppe.optim.base import STEP

GOOD, BAD = torch.ones(4, 3), torch.full((4, 3), torch.nan)


class Replacing(nn.Module):
    """A layer whose statistics are other tensors after every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("running_mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.running_mean = 0.9 * self.running_mean + 0.1 * y.mean(0).detach()
        return y


def built(
    model: nn.Module | None = None, method: str = "sam", **options: Any
) -> tuple[nn.Module, steppe.SharpnessAware]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)) if model is None else model
    opt = steppe.build(method, SGD(model.parameters(), lr=0.1, **options), model=model)
    take(opt, model, GOOD)
    return model, opt


def passes(opt: steppe.SharpnessAware, model: nn.Module, x: Tensor, **how: Any) -> None:
    for pass_ in opt.passes(**how):
        pass_.backward(model(x).square().sum())


def take(opt: steppe.SharpnessAware, model: nn.Module, x: Tensor) -> None:
    passes(opt, model, x)
    opt.step()


def refused(step: int) -> Any:
    return pytest.raises(FloatingPointError, match=f"step {step} is not finite")


def test_statistics_that_passes_replace_are_put_back() -> None:
    model, opt = built(Replacing())
    before = copy.deepcopy(model.state_dict())
    with refused(1):
        take(opt, model, BAD)
    same(dict(model.state_dict()), dict(before))


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimizers_do_not_hear_of_a_refused_step(register: Callable[..., Any]) -> None:
    model, opt = built()
    heard: list[Any] = []
    handle = register(lambda asked, *_: heard.append(asked) if asked is opt.base else None)
    try:
        with refused(1):
            take(opt, model, BAD)
        assert heard == []
        take(opt, model, GOOD)
        assert heard == [opt.base]
    finally:
        handle.remove()


def test_a_micro_batch_that_is_given_up_does_not_spoil_those_before_it() -> None:
    """However bad it was."""
    model, opt = built(method="gsam")
    passes(opt, model, GOOD)
    for pass_ in opt.passes(accumulate=True):
        pass_.backward(model(BAD).square().sum())
        if pass_.probe.at is not None:
            break
    opt.step()
    assert {g[STEP] for g in opt.param_groups} == {2}
    assert all(t.isfinite().all() for t in model.state_dict().values())


def test_hooks_do_not_hear_of_a_refused_step_where_a_scaler_is_off() -> None:
    model, opt = built()
    opt.scaler, heard = torch.amp.GradScaler("cpu", enabled=False), []
    opt.register_step_post_hook(lambda *_: heard.append(1))
    for x, error in ((GOOD, None), (BAD, refused(2))):
        with error or nullcontext():
            opt.step(lambda pass_, x=x: pass_.backward(model(x).square().sum()))
    assert heard == [1]


def test_a_micro_batch_that_fails_leaves_those_before_it_as_they_were() -> None:
    for first, met in ((GOOD, None), (BAD, refused(1))):
        model, opt = built()
        passes(opt, model, first)
        with pytest.raises(ZeroDivisionError):
            for _ in opt.passes(accumulate=True):
                raise ZeroDivisionError
        passes(opt, model, GOOD, accumulate=True)
        twin, its = built()
        passes(its, twin, first)
        passes(its, twin, GOOD, accumulate=True)
        for each in (opt, its):
            if met is None:
                each.step()
            else:
                with refused(1):
                    each.step()
        same(dict(model.state_dict()), dict(twin.state_dict()))
        assert all(t.isfinite().all() for t in model.state_dict().values())


def test_a_state_that_is_loaded_between_the_passes_and_their_step() -> None:
    model, opt = built()
    take(opt, model, GOOD)
    before = copy.deepcopy(model.state_dict())
    passes(opt, model, BAD)
    opt.base.load_state_dict(copy.deepcopy(opt.base.state_dict()))
    with refused(2):
        opt.step()
    same(dict(model.state_dict()), dict(before))


@pytest.mark.parametrize("away", [lambda s: s.pop("momentum_buffer"), lambda s: s.update(momentum_buffer=None)])
def test_momentum_that_somebody_took_away_is_not_made_of_garbage(away: Callable[[Any], Any]) -> None:
    model, opt = built(momentum=0.9)
    take(opt, model, GOOD)
    for state in opt.base.state.values():
        away(state)
    with refused(2):
        take(opt, model, BAD)
    assert all(state.get("momentum_buffer") is None for state in opt.base.state.values())
