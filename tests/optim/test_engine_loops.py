"""Loops of the caller's own: accumulation, clipping, a scaler, and what `passes()` leaves in `p.grad`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from registry import Net, batch, copied, same
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

import steppe
from steppe.optim.engine import _takes_the_pass


def setting(method: Any, lr: float = 0.1, dtype: torch.dtype = torch.float64, **engine: Any) -> tuple[Net, Any]:
    torch.manual_seed(0)
    model = Net(norm="layer", dropout=0.0).to(dtype)
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, steppe.SharpnessAware(base, method, model=model, **engine)


def loss_on(model: Net, number: int, rows: slice = slice(None)) -> Tensor:
    x, y = batch(number, next(model.parameters()).dtype)
    return F.cross_entropy(model(x[rows]), y[rows])


def sharpness_aware_gradient(model: Net, rho: float, number: int = 0, rows: slice = slice(None)) -> list[Tensor]:
    """SAM's gradient by the definition, on a copy of the parameters."""
    params = dict(model.named_parameters())
    x, y = batch(number)

    def grad(at: dict[str, Tensor]) -> list[Tensor]:
        at = {k: v.detach().requires_grad_() for k, v in at.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, at, x[rows]), y[rows])
        return list(torch.autograd.grad(loss, list(at.values())))

    here = grad(params)
    norm = torch.cat([g.flatten() for g in here]).norm()
    return grad({k: p + rho * g / norm for (k, p), g in zip(params.items(), here, strict=True)})


def test_passes_leave_the_sharpness_aware_gradient() -> None:
    model, opt = setting(steppe.SAM(0.5))
    expected = sharpness_aware_gradient(model, 0.5)
    for pass_ in opt.passes():
        pass_.backward(loss_on(model, 0))
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-12, atol=1e-14)


def test_clipping_applies_to_the_final_gradient() -> None:
    model, opt = setting(steppe.SAM(0.5))
    before = [p.detach().clone() for p in model.parameters()]
    expected = sharpness_aware_gradient(model, 0.5)
    norm = torch.cat([g.flatten() for g in expected]).norm()
    for pass_ in opt.passes():
        pass_.backward(loss_on(model, 0))
    clip_grad_norm_(model.parameters(), 0.01)
    opt.step()
    for p, w, g in zip(model.parameters(), before, expected, strict=True):
        torch.testing.assert_close(p.detach(), w - 0.1 * 0.01 * g / norm, rtol=1e-6, atol=1e-9)


def test_accumulated_steps_are_sam_per_micro_batch() -> None:
    """`accumulate=True` adds each micro-batch's own sharpness-aware gradient: m-sharpness, as PerPart has it."""
    model, opt = setting(steppe.SAM(0.5))
    other, whole = setting(steppe.PerPart(steppe.SAM(0.5), parts=2))
    for i in range(3):
        opt.zero_grad()
        for rows in (slice(0, 5), slice(5, 10)):
            for pass_ in opt.passes(accumulate=True):
                pass_.backward(loss_on(model, i, rows) / 2)
        opt.step()

        def closure(pass_: Any) -> None:
            x, y = pass_.rows(*batch(i))
            pass_.backward(F.cross_entropy(other(x), y))

        whole.step(closure)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    assert opt.param_groups[0]["steppe.step"] == 3


def test_accumulation_keeps_what_was_there_when_a_pass_fails() -> None:
    model, opt = setting(steppe.SAM(0.5))
    for pass_ in opt.passes(accumulate=True):
        pass_.backward(loss_on(model, 0))
    kept = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        for number, pass_ in enumerate(opt.passes(accumulate=True)):
            pass_.backward(loss_on(model, 1))
            1 // (1 - number)
    same([p.grad for p in model.parameters()], kept)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_bad_micro_batch_spoils_the_accumulated_step(bad: int) -> None:
    """Whichever of the accumulated parts was not finite, the weights never see it."""
    model, opt = setting(steppe.SAM(0.5))
    before = copied(model.state_dict())
    opt.zero_grad()
    for part in range(2):
        for pass_ in opt.passes(accumulate=True):
            pass_.backward(loss_on(model, part) * (torch.nan if part == bad else 1.0))
    with pytest.raises(FloatingPointError):
        opt.step()
    same(copied(model.state_dict()), before)


def test_accumulation_under_a_scaler() -> None:
    model, opt = setting(steppe.SAM(0.5), dtype=torch.float32, scaler=scaler())
    other, plain = setting(steppe.SAM(0.5), dtype=torch.float32)
    for i in range(2):
        for m, o in ((model, opt), (other, plain)):
            o.zero_grad()
            for part in (slice(0, 4), slice(4, 10)):
                for pass_ in o.passes(accumulate=True):
                    pass_.backward(loss_on(m, i, part))
        opt.scaler.step(opt)
        opt.scaler.update()
        plain.step()
    same(model.state_dict(), other.state_dict())


def test_without_accumulation_old_gradients_do_not_enter() -> None:
    model, opt = setting(steppe.SAM(0.5))
    other, clean = setting(steppe.SAM(0.5))
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e3)
    for m, o in ((model, opt), (other, clean)):
        for pass_ in o.passes():
            pass_.backward(loss_on(m, 0))
        o.step()
    same(model.state_dict(), other.state_dict())


def scaler(scale: float = 2.0**8) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def test_unscale_clip_and_step() -> None:
    """The recipe of torch's AMP page, around `passes()`: clipping sees the true gradient."""
    model, opt = setting(steppe.SAM(0.5), dtype=torch.float32, scaler=scaler())
    other, plain = setting(steppe.SAM(0.5), dtype=torch.float32)
    for i in range(3):
        for pass_ in opt.passes():
            pass_.backward(loss_on(model, i))
        opt.scaler.unscale_(opt)
        clip_grad_norm_(model.parameters(), 0.05)
        opt.scaler.step(opt)
        opt.scaler.update()
        for pass_ in plain.passes():
            pass_.backward(loss_on(other, i))
        clip_grad_norm_(other.parameters(), 0.05)
        plain.step()
    same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("bad", [0, 1])
def test_gradients_that_overflow_under_a_finite_loss(bad: int) -> None:
    """What a scale that is too large does in float16: the loss is fine, its scaled gradient is not."""
    model, opt = setting(steppe.SAM(0.5), dtype=torch.float32, scaler=scaler())
    before = copied(model.state_dict()), copied(opt.state_dict())
    for number, pass_ in enumerate(opt.passes()):
        loss = loss_on(model, 0)
        if number == bad:
            loss.register_hook(lambda g: g * torch.inf)
        pass_.backward(loss)
    opt.scaler.step(opt)
    opt.scaler.update()
    same((copied(model.state_dict()), copied(opt.state_dict())), before)
    assert opt.scaler.get_scale() == 2.0**7


def test_plain_closures_scale_by_themselves() -> None:
    model, opt = setting(steppe.SAM(0.5), dtype=torch.float32, scaler=scaler())
    other, plain = setting(steppe.SAM(0.5), dtype=torch.float32)

    def closure() -> Tensor:
        loss = loss_on(model, 0)
        opt.scaler.scale(loss).backward()
        return loss

    returned = opt.step(closure)
    opt.scaler.update()
    expected = plain.step(lambda pass_: (pass_.backward(loss := loss_on(other, 0)), loss)[1])
    assert float(returned.detach()) == float(expected.detach())
    same(model.state_dict(), other.state_dict())


def test_two_optimizers_share_one_scaler() -> None:
    model, opt = setting(steppe.SAM(0.5), dtype=torch.float32, scaler=scaler())
    extra = torch.nn.Parameter(torch.ones(2))
    plain = torch.optim.SGD([extra], lr=0.5)
    for pass_ in opt.passes():
        pass_.backward(loss_on(model, 0))
    opt.scaler.scale(extra.sum()).backward()
    before = model.head.weight.detach().clone()
    opt.scaler.step(opt)
    opt.scaler.step(plain)
    opt.scaler.update()
    assert torch.equal(extra, torch.full((2,), 0.5))
    assert not torch.equal(model.head.weight, before)


@pytest.mark.parametrize(
    "closure",
    [
        lambda: 0, lambda pass_: 0, lambda x: 0, lambda x=1: 0, lambda pass_=None: 0, lambda *x: 0, lambda *, pass_: 0,
        lambda x, y=1: 0, lambda x=1, pass_=2: 0, lambda **pass_: 0,
    ],
)  # fmt: skip
def test_whether_a_closure_wants_the_pass_is_read_from_its_code_as_from_its_signature(closure):
    quickly = _takes_the_pass(closure)
    closure.marked = True  # such functions may say something else of themselves: their signature is asked
    assert _takes_the_pass(closure) == quickly
