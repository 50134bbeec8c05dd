"""Base optimizers whose kernels nobody has chosen are fused on a GPU, and do what they did."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import steppe
from steppe.optim import fused
from steppe.optim.fused import fuse

CUDA = torch.cuda.is_available()
BASES: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(Adam, lr=0.01),
    "adamw": partial(AdamW, lr=0.01, amsgrad=True),
}


class Mine(SGD):
    """Might step in its own way."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """A device on which kernels are chosen; torch has fused ones on the CPU too."""
    if not CUDA:
        monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    return "cuda" if CUDA else "cpu"


def net(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)


def taken(base: Callable[..., Optimizer], device: str, steps: int = 4, **chosen: Any) -> tuple[nn.Module, Optimizer]:
    model = net(device)
    opt = steppe.build("sam", base(model.parameters(), **chosen), model=model, rho=0.1)
    draws = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 3, generator=draws).to(device)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            loss: torch.Tensor = model(x).square().sum()
            loss.backward()
            return loss

        opt.step(closure)
    return model, opt.base


@pytest.mark.parametrize("name", BASES)
def test_fused_steps_are_the_same_to_rounding(name: str, here: str) -> None:
    found, base = taken(BASES[name], here)
    expected, other = taken(BASES[name], here, foreach=True)
    assert [g["fused"] for g in base.param_groups] == [True]
    assert [g["fused"] for g in other.param_groups] == [None]
    for p, q in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chosen", [{"foreach": True}, {"foreach": False}, {"fused": False}, {"differentiable": True}])
def test_what_somebody_has_chosen_stays(chosen: dict[str, Any], here: str) -> None:
    base = SGD(net(here).parameters(), lr=0.1, **chosen)
    before = dict(base.param_groups[0])
    assert fuse(base) == []
    assert base.param_groups[0] == before


def test_each_group_is_looked_at(here: str) -> None:
    model = net(here)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "foreach": True}]
    base = SGD(groups, lr=0.1)
    assert fuse(base) == [base.param_groups[0]]
    assert [g["fused"] for g in base.param_groups] == [True, None]


@pytest.mark.parametrize("base", [RMSprop, Mine])
def test_others_stay_as_they_are(base: type[Optimizer], here: str) -> None:
    made: Any = base(net(here).parameters(), lr=0.1)  # type: ignore[call-arg]
    assert fuse(made) == []
    assert not made.param_groups[0].get("fused")


def test_other_devices_are_left_alone(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "DEVICES", ("elsewhere",))
    assert fuse(SGD(net(here).parameters(), lr=0.1)) == []


def test_a_sparse_gradient_ends_it(here: str) -> None:
    ends = []
    for chosen in ({}, {"foreach": True}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2)).to(here)
        base = SGD(model.parameters(), lr=0.1, **chosen)  # type: ignore[arg-type]
        opt = steppe.build("sam", base, model=model, rho=0.1)
        for i in range(3):
            rows = torch.tensor([[0, 1], [i, 5]], device=here)

            def closure(rows: torch.Tensor = rows, model: nn.Module = model) -> torch.Tensor:
                loss: torch.Tensor = model(rows).square().sum()
                loss.backward()
                return loss

            opt.step(closure)
        assert base.param_groups[0]["fused"] is None
        ends.append(model)
    for p, q in zip(ends[0].parameters(), ends[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_a_cpu_keeps_the_kernels_of_torch() -> None:
    _, base = taken(BASES["momentum"], "cpu", steps=1)
    assert base.param_groups[0]["fused"] is None


@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_a_state_that_was_saved_before_goes_on(name: str, here: str) -> None:
    """Adam counts its steps on the host unless it is fused."""
    model, base = taken(BASES[name], here, steps=2, foreach=True)
    state = base.state_dict()
    for group in state["param_groups"]:
        group["foreach"] = None
    other = BASES[name](model.parameters())
    other.load_state_dict(state)
    opt = steppe.build("sam", other, model=model)

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(2, 3, device=here)).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert other.param_groups[0]["fused"]
    if name == "adam":
        assert {float(s["step"]) for s in other.state.values()} == {3.0}
        assert {s["step"].device.type for s in other.state.values()} == {here}


def step_on(opt: steppe.SharpnessAware, model: nn.Module, x: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(x).square().sum()
        loss.backward()
        return loss

    opt.step(closure)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("method", ["sam", "sa-sam"])
@pytest.mark.parametrize("first", [0, 2])  # the step that is refused: where there is no state yet, and where there is
@pytest.mark.parametrize("says", ["raise", "skip"])
def test_a_refused_step_leaves_no_trace(says: Any, first: int, method: str, name: str, here: str) -> None:
    ends = []
    for bad in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).to(here)
        opt = steppe.build(method, BASES[name](model.parameters()), model=model, on_nonfinite=says)
        draws = torch.Generator().manual_seed(1)
        for i in range(4):
            if bad and i == first:
                before = [deepcopy(model.state_dict()), deepcopy(opt.state_dict())]
                broken = torch.full((8, 3), torch.nan, device=here)
                if says == "raise":
                    with pytest.raises(FloatingPointError, match=f"step {first} is not finite"):
                        step_on(opt, model, broken)
                        opt.settle()
                else:
                    step_on(opt, model, broken)
                for old, new in zip(before, [model.state_dict(), opt.state_dict()], strict=True):
                    assert_same(without_choice(old), without_choice(new))
            step_on(opt, model, torch.randn(8, 3, generator=draws).to(here))
        ends.append([deepcopy(model.state_dict()), deepcopy(opt.state_dict())])
        assert all(g["fused"] for g in opt.param_groups)
    assert_same(*map(without_choice, ends))


def without_choice(state: Any) -> Any:
    """A state without the choice of kernels, which a first step may make."""
    if isinstance(state, dict):
        return {k: without_choice(v) for k, v in state.items() if k != "fused"}
    return [without_choice(v) for v in state] if isinstance(state, list) else state


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_hooks_of_the_base_do_not_hear_of_a_step_that_is_refused(here: str) -> None:
    model = net(here)
    base = SGD(model.parameters(), lr=0.1, fused=True)
    opt, heard = steppe.build("sam", base, model=model, on_nonfinite="skip"), []
    base.register_step_post_hook(lambda *_: heard.append(1))
    step_on(opt, model, torch.ones(8, 3, device=here))
    step_on(opt, model, torch.full((8, 3), torch.nan, device=here))
    assert heard == [1]


@pytest.mark.parametrize("later", [False, True])
def test_weights_that_get_their_first_gradient_later(later: bool, here: str) -> None:
    """SGD's fused kernels begin with all weights at once, its other ones with each by itself."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.both = nn.Linear(3, 2), nn.Linear(3, 2), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.one(x)
            return out + self.two(x) if self.both else out

    ends = []
    for chosen in ({}, {"foreach": True}):
        torch.manual_seed(0)
        model = Branch().to(here)
        model.two.requires_grad_(not later)  # unfrozen, or not yet asked
        opt = steppe.build("sam", SGD(model.parameters(), lr=0.1, momentum=0.9, **chosen), model=model)  # type: ignore[arg-type]
        draws = torch.Generator().manual_seed(1)
        for i in range(5):
            if i == 2:
                model.both = True
                model.two.requires_grad_()
            step_on(opt, model, torch.randn(8, 3, generator=draws).to(here))
        ends.append(model)
    for p, q in zip(ends[0].parameters(), ends[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_what_is_chosen_later_stays(here: str) -> None:
    """As `capture` does, whose steps are refused by fused kernels."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)).to(here)  # the second one is never asked
    base = SGD(model.parameters(), lr=0.1)
    opt = steppe.build("sam", base, model=model)
    opt._survey()
    assert base.param_groups[0]["fused"]
    base.param_groups[0]["foreach"] = False
    step_on(opt, model[0], torch.ones(8, 3, device=here))
    assert base.param_groups[0]["fused"]
