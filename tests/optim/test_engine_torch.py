"""The engine as a torch optimizer: groups, state, schedulers, hooks and closures are those of its base."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from registry import BASES, Net, batch, same, torch_closure
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

import steppe


def setting(method: Any = None, base: str = "sgd", **engine: Any) -> tuple[Net, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = Net(norm="layer", dropout=0.0).double()
    optimizer = BASES[base](model.parameters())
    return model, optimizer, steppe.SharpnessAware(optimizer, method or steppe.SAM(0.1), model=model, **engine)


def test_groups_state_and_defaults_are_the_bases_own() -> None:
    _, base, opt = setting()
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is base.param_groups
    assert opt.state is base.state
    assert opt.defaults is base.defaults


@pytest.mark.parametrize("on", ["wrapper", "base"])
@pytest.mark.parametrize("by", ["closure", "passes"])
def test_a_scheduler_reaches_the_base_without_a_warning(on: str, by: str) -> None:
    """Warnings are errors here; at radius 0 the run is bitwise that of the scheduled base."""
    model, base, opt = setting(steppe.SAM(0.0))
    other, plain, _ = setting()
    schedules = [StepLR(opt if on == "wrapper" else base, 1, 0.5), StepLR(plain, 1, 0.5)]
    for i in range(3):
        if by == "closure":
            opt.step(torch_closure(model, opt, i))
        else:
            x, y = batch(i)
            for pass_ in opt.passes():
                pass_.backward(F.cross_entropy(model(x), y))
            opt.step()
        plain.step(torch_closure(other, plain, i))
        for s in schedules:
            s.step()
        assert base.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == 0.1 * 0.5 ** (i + 1)
    same(model.state_dict(), other.state_dict())


def test_schedulers_that_turn_other_knobs() -> None:
    model, base, opt = setting()
    cycle = OneCycleLR(opt, max_lr=0.2, total_steps=5)
    plateau = ReduceLROnPlateau(opt, patience=0)
    before = base.param_groups[0]["momentum"]
    for i in range(3):
        loss = opt.step(torch_closure(model, opt, i))
        cycle.step()
    assert base.param_groups[0]["momentum"] != before
    base.param_groups[0]["lr"] = 0.1
    for _ in range(2):
        plateau.step(loss.detach())
    assert base.param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("to", ["wrapper", "base"])
def test_a_group_added_later_is_perturbed_with_its_own_radius(to: str) -> None:
    model, base, opt = setting(steppe.SAM(0.1))
    opt.step(torch_closure(model, opt))
    late = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    (opt if to == "wrapper" else base).add_param_group({"params": [late], "lr": 0.5, "rho": 0.3})
    assert base.param_groups[1]["lr"] == 0.5
    assert base.param_groups[1]["momentum"] == 0.9
    places: list[float] = []

    def closure(pass_: Any) -> Tensor:
        places.append(float(late.detach()))
        loss = late.pow(2).sum() + 0 * model.head.bias.sum()
        pass_.backward(loss)
        return loss

    opt.step(closure)
    assert places == pytest.approx([3.0, 3.3])  # all of the gradient is here, so all of the group's own radius
    assert float(late.detach()) == pytest.approx(3.0 - 0.5 * (2 * 3.3 + 0.01 * 3.0))


@pytest.mark.parametrize("to", ["wrapper", "base"])
def test_a_group_added_later_gets_the_methods_defaults(to: str) -> None:
    model, base, opt = setting(steppe.SAM(0.1))
    opt.step(torch_closure(model, opt))
    late = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    (opt if to == "wrapper" else base).add_param_group({"params": [late]})
    opt.step(torch_closure(model, opt, 1))
    assert base.param_groups[1]["rho"] == 0.1
    assert base.param_groups[1]["steppe.step"] == base.param_groups[0]["steppe.step"] == 2


@pytest.mark.parametrize("on", ["wrapper", "base"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaler"])
@pytest.mark.parametrize("by", ["closure", "passes"])
def test_step_hooks_run_once_a_step(on: str, by: str, scaled: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if scaled else None
    model, base, opt = setting(scaler=scaler)
    calls: list[str] = []
    target = opt if on == "wrapper" else base
    target.register_step_pre_hook(lambda *_: calls.append("before"))
    target.register_step_post_hook(lambda *_: calls.append("after"))
    x, y = batch(0)
    for _ in range(2):
        if by == "closure":
            opt.step(lambda pass_: pass_.backward(F.cross_entropy(model(x), y)))
        else:
            for pass_ in opt.passes():
                pass_.backward(F.cross_entropy(model(x), y))
            opt.step() if scaler is None else scaler.step(opt)
        if scaler is not None:
            scaler.update()
    assert calls == ["before", "after"] * 2


def test_state_dict_hooks_run() -> None:
    _, _, opt = setting()
    calls: list[str] = []
    opt.register_state_dict_post_hook(lambda o, state: calls.append("saved"))
    opt.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
    opt.load_state_dict(opt.state_dict())
    assert calls == ["saved", "loaded"]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool) -> None:
    model, _, opt = setting()
    opt.step(torch_closure(model, opt))
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    opt.zero_grad(set_to_none=set_to_none)
    assert all(p.grad is None if set_to_none else not p.grad.any() for p in model.parameters())


def test_repr_names_method_and_base() -> None:
    _, _, opt = setting(steppe.GSAM(0.3))
    assert "GSAM(rho=0.3" in repr(opt)
    assert "SGD" in repr(opt)
    assert "momentum: 0.9" in repr(opt)


def test_a_checkpoint_of_the_bare_base_starts_a_sharpness_aware_run() -> None:
    """Training went on without steppe until now: momentum is taken over, options are the method's defaults."""
    model, base, _ = setting()
    base.step(torch_closure(model, base))
    again, _, opt = setting(steppe.SAM(0.2))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    plain.load_state_dict(base.state_dict())
    state = plain.state_dict()
    for group in state["param_groups"]:
        group.pop("rho", None), group.pop("steppe.step", None)
    again.load_state_dict(model.state_dict())
    opt.load_state_dict(state)
    assert opt.param_groups[0]["rho"] == 0.2
    assert torch.equal(
        opt.state[again.head.weight]["momentum_buffer"], base.state[model.head.weight]["momentum_buffer"]
    )
    opt.step(torch_closure(again, opt))


def test_loading_replaces_the_groups_of_both() -> None:
    """`load_state_dict` makes new group dictionaries: options set afterwards on either side reach the step."""
    model, base, opt = setting(steppe.SAM(0.1))
    opt.load_state_dict(opt.state_dict())
    assert opt.param_groups is base.param_groups
    opt.param_groups[0]["lr"] = 0.0
    before = model.head.weight.detach().clone()
    opt.step(torch_closure(model, opt))
    assert torch.equal(model.head.weight, before)


def test_torch_closures_of_every_kind_agree() -> None:
    """With zero_grad or without, under no_grad, with defaults that bind a loop's variables, returning anything."""
    ends = []
    for kind in range(6):
        model, _, opt = setting()
        x, y = batch(0)
        standard = torch_closure(model, opt)

        def backward(pass_: Any) -> None:
            pass_.backward(F.cross_entropy(model(x), y))

        def bare() -> float:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.item()

        def bound(inputs: Tensor = x, targets: Tensor = y) -> Tensor:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        closures = [standard, bare, backward, standard, torch.enable_grad()(standard), bound]
        with torch.set_grad_enabled(kind != 3):
            opt.step(closures[kind])
        ends.append({k: v.clone() for k, v in model.state_dict().items()})
    for end in ends[1:]:
        same(end, ends[0])


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_foreach_and_fused_bases(kind: Any, options: dict[str, bool]) -> None:
    model, _, _ = setting()
    other, _, _ = setting()
    opt = steppe.sam(kind(model.parameters(), lr=0.1, **options), rho=0.0, model=model)
    plain = kind(other.parameters(), lr=0.1, **options)
    for i in range(3):
        opt.step(torch_closure(model, opt, i))
        plain.step(torch_closure(other, plain, i))
    same(model.state_dict(), other.state_dict())
