"""What widely used implementations get wrong on one machine: each was reproduced there, and each is a test here."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from registry import copied, same
from torch import Tensor, nn

import steppe


class TwoRoads(nn.Module):
    """A classifier with a second layer that only some passes take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.side = nn.Linear(3, 4), nn.Linear(3, 4)
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.double()
        self.take_side = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x) + self.side(x) if self.take_side else self.trunk(x)
        return self.head(torch.tanh(self.norm(hidden)))


def setting(method: Any = None, lr: float = 0.1, **engine: Any) -> tuple[TwoRoads, Any]:
    model = TwoRoads()
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, steppe.SharpnessAware(base, method or steppe.SAM(0.5), model=model, **engine)


def batch(number: int) -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def closure_on(model: nn.Module, opt: Any, number: int) -> Any:
    """The closure that torch's own documentation shows."""

    def closure() -> Tensor:
        opt.zero_grad()
        loss = (model(batch(number)) - 1).square().mean()
        loss.backward()
        return loss

    return closure


def test_the_ascent_is_along_the_gradient_of_the_current_batch() -> None:
    """From the very first step on, and never along the last batch's."""
    model, opt = setting(lr=0.01)
    for i in range(3):
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        displacements: list[Tensor] = []

        def closure() -> Tensor:
            displacements.append(torch.cat([p.detach().flatten() for p in model.parameters()]) - start)
            return closure_on(model, opt, i)()

        twin = copy.deepcopy(model)
        params = [p for n, p in twin.named_parameters() if not n.startswith("side")]
        grads = torch.autograd.grad((twin(batch(i)) - 1).square().mean(), params)
        by_name = dict(zip((n for n, _ in twin.named_parameters() if not n.startswith("side")), grads, strict=True))
        expected = torch.cat(
            [by_name[n].flatten() if n in by_name else torch.zeros(p.numel()) for n, p in model.named_parameters()]
        )
        opt.step(closure)
        assert not displacements[0].any()
        torch.testing.assert_close(displacements[1], 0.5 * expected / expected.norm(), rtol=1e-9, atol=1e-12)


def test_step_returns_the_loss_and_not_none() -> None:
    model, opt = setting()
    twin = copy.deepcopy(model)
    loss = opt.step(closure_on(model, opt, 0))
    assert float(loss.detach()) == float((twin(batch(0)) - 1).square().mean().detach())


def test_a_loss_of_exactly_zero_is_no_failure() -> None:
    """`if loss:` is not how to ask whether there is one."""
    w = nn.Parameter(torch.ones(2))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.1), rho=0.5)
    loss = opt.step(lambda pass_: (pass_.backward(out := (w - w.detach()).sum()), out)[1])
    assert float(loss.detach()) == 0.0
    torch.testing.assert_close(w.detach(), torch.full((2,), 0.9))


def test_looksam_skips_the_second_pass() -> None:
    """Twenty steps with k = 10 take 22 passes, not 40."""
    model, opt = setting(steppe.LookSAM(0.1, k=10))
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return closure_on(model, opt, calls)()

    for _ in range(20):
        opt.step(closure)
    assert calls == 22


def test_statistics_are_never_frozen() -> None:
    """Helpers that set momentum to 0 and save it twice freeze it for ever: here failed and abandoned steps abound."""
    model, opt = setting()
    wrapped_again = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for i in range(3):
        with pytest.raises(ZeroDivisionError):
            opt.step(lambda: 1 // 0)
        wrapped_again.step(closure_on(model, wrapped_again, i))
        kept = opt.passes()
        pass_ = next(kept)
        pass_.backward(model(batch(i)).sum())
        next(kept)
        opt.step(closure_on(model, opt, i))
    assert model.norm.momentum == 0.1
    assert model.norm.training
    assert int(model.norm.num_batches_tracked) == 6
    before = model.norm.running_mean.clone()
    model(batch(9))
    assert not torch.equal(model.norm.running_mean, before)


def test_batches_are_counted_once_a_step() -> None:
    model, opt = setting(steppe.SAM(0.5, steps=4))
    for i in range(3):
        opt.step(closure_on(model, opt, i))
    assert int(model.norm.num_batches_tracked) == 3


@pytest.mark.parametrize("kind", ["subclass", "sync", "another class"])
def test_batch_normalisation_of_any_class_is_found(kind: str) -> None:
    if kind == "sync" and torch.__version__ < (2, 7):
        pytest.skip("SyncBatchNorm of torch before 2.7 does not run on a CPU")

    class Mine(nn.BatchNorm1d):
        pass

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            self.running_mean.lerp_(x.detach().mean(0), 0.1)
            return x - x.mean(0)

    model = TwoRoads()
    model.norm = {"subclass": Mine(4), "sync": nn.SyncBatchNorm(4), "another class": Other()}[kind].double()
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), rho=5.0, model=model)
    for i in range(2):
        plain = copy.deepcopy(model)
        plain(batch(i))
        opt.step(closure_on(model, opt, i))
        assert torch.equal(model.norm.running_mean, plain.norm.running_mean)


def test_weights_come_back_when_the_second_pass_raises() -> None:
    model, opt = setting()
    before = copied(model.state_dict())
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return closure_on(model, opt, 0)()

    with pytest.raises(MemoryError):
        opt.step(closure)
    same(copied(model.state_dict()), before)


@pytest.mark.parametrize("taken", [0, 1])
def test_weights_come_back_when_a_gradient_comes_or_goes_between_passes(taken: int) -> None:
    """In pass 1 only it was left perturbed; in pass 2 only it was a KeyError."""
    model, opt = setting(lr=0.0)
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    for number, pass_ in enumerate(opt.passes()):
        model.take_side = number == taken
        pass_.backward((model(batch(0)) - 1).square().mean())
    opt.step()
    same(dict(model.named_parameters()), before)


def test_a_stale_displacement_is_never_taken_back() -> None:
    """A layer that had a gradient in an earlier step and has none now: implementations subtract its old e_w again."""
    model, opt = setting(lr=0.0)
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    for i, side in enumerate([True, False, True, False]):
        model.take_side = side
        opt.step(closure_on(model, opt, i))
    same(dict(model.named_parameters()), before)


def test_no_gradient_at_all_is_said() -> None:
    """Frozen weights, or a closure that forgot backward: not a RuntimeError of torch.stack, and not silence."""
    w = nn.Parameter(torch.ones(2))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.1))
    with pytest.raises(RuntimeError, match="backward"):
        opt.step(lambda: w.sum())


def test_float16_norms_do_not_overflow_to_no_perturbation() -> None:
    w = nn.Parameter(torch.zeros(512, 512, dtype=torch.float16))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.0), rho=0.05)
    radii: list[float] = []
    opt.step(lambda pass_: (radii.append(float(w.detach().float().norm())), pass_.backward((w.float() * 300).sum())))
    assert radii == pytest.approx([0.0, 0.05], rel=1e-2)


def test_a_zero_gradient_is_no_nan() -> None:
    model, opt = setting()
    before = {k: v.detach().clone() for k, v in model.named_parameters()}
    opt.step(lambda pass_: pass_.backward((model(batch(0)) * 0).sum()))
    same(dict(model.named_parameters()), before)


def test_one_bad_entry_does_not_turn_every_weight_to_nan() -> None:
    model, opt = setting()
    before = copied(dict(model.named_parameters()))

    def closure() -> Tensor:
        loss = closure_on(model, opt, 0)()
        model.head.weight.grad[0, 0] = math.nan
        return loss

    with pytest.raises(FloatingPointError):
        opt.step(closure)
    same(copied(dict(model.named_parameters())), before)


def test_parameters_keep_their_storage() -> None:
    """Swapping `p.data` breaks whoever holds the memory: flat buffers, graphs, shards."""
    model, opt = setting()
    places = [p.data_ptr() for p in model.parameters()]
    opt.step(closure_on(model, opt, 0))
    assert places == [p.data_ptr() for p in model.parameters()]


def test_the_realised_perturbation_can_be_seen() -> None:
    """Users could not tell whether the method was active at all."""
    model, opt = setting(record=True)
    opt.step(closure_on(model, opt, 0))
    report = opt.last.read()
    assert report["displacement"] == pytest.approx(0.5)
    assert report["perturbed_loss"] > report["loss"]


def test_a_radius_schedule_stays_positive_in_warm_up() -> None:
    """Extrapolating below the smallest learning rate gave -0.0056 at lr 0."""
    w = nn.Parameter(torch.ones(2))
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.0), steppe.GSAM(0.1))
    radius = steppe.RadiusFollowsLR(opt, rho_max=0.1, rho_min=0.02, lr_max=1.0, lr_min=0.1)
    seen = []
    for lr in (0.0, 0.05, 0.1, 0.55, 1.0, 2.0):
        opt.param_groups[0]["lr"] = lr
        radius.step()
        seen.append(opt.param_groups[0]["rho"])
    assert seen == pytest.approx([0.02, 0.02, 0.02, 0.06, 0.1, 0.1])
