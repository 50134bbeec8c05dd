"""Optimizers that wrap others, as bases: the step of a twin whose SAM gradient is computed by hand."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe

RHO = 0.3


def lookahead(po: Any, model: nn.Module) -> Any:
    return po.Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), k=3, alpha=0.5)


def schedule_free(po: Any, model: nn.Module) -> Any:
    return po.ScheduleFreeSGD(model.parameters(), lr=0.1)


def schedule_free_wrapper(po: Any, model: nn.Module) -> Any:
    return po.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.1), momentum=0.9)


def rows() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64)


def step_by_hand(model: nn.Module, base: Any) -> None:
    x, y = rows()
    params = list(model.parameters())
    up = torch.autograd.grad(nn.functional.mse_loss(model(x), y), params)
    norm = torch.stack([g.square().sum() for g in up]).sum().sqrt()
    before = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, g in zip(params, up, strict=True):
            p.add_(RHO * g / norm)
    for p, g in zip(params, torch.autograd.grad(nn.functional.mse_loss(model(x), y), params), strict=True):
        p.grad = g
    with torch.no_grad():
        for p, b in zip(params, before, strict=True):
            p.copy_(b)
    base.step()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", [lookahead, schedule_free, schedule_free_wrapper])
def test_wrappers_of_another_library(make: Any) -> None:
    po = pytest.importorskip("pytorch_optimizer", reason="an earlier .venv: `make test` installs it")
    x, y = rows()
    model = nn.Linear(4, 1, dtype=torch.float64)
    twin, plain = deepcopy(model), deepcopy(model)
    base, by_hand = make(po, model), make(po, twin)
    for each in (base, by_hand):
        if hasattr(each, "train"):
            each.train()
    opt = steppe.SharpnessAware(base, steppe.SAM(RHO), model=model)
    for _ in range(8):  # Lookahead moves its slow weights in steps 3 and 6
        for pass_ in opt.passes():
            pass_.backward(nn.functional.mse_loss(model(x), y))
        opt.step()
        step_by_hand(twin, by_hand)
        torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=1e-12)
    assert not torch.allclose(model.weight, plain.weight)


def test_a_scaler_that_runs_backward_itself_is_told_of_passes() -> None:
    """timm's NativeScaler calls `scale(loss).backward()` once: such a step raises and changes nothing."""
    x, y = rows()
    model = nn.Linear(4, 1, dtype=torch.float64)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = steppe.SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=0.1), steppe.SAM(RHO), model=model, scaler=scaler
    )
    before = deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="passes"):
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward(create_graph=False)
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_scaler_where_float64_is_the_default() -> None:
    """The scaler takes overflow flags of float32 only."""
    torch.set_default_dtype(torch.float64)
    try:
        x, y = rows()
        model = nn.Linear(4, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = steppe.SharpnessAware(base, steppe.SAM(RHO), model=model, scaler=scaler)
        for pass_ in opt.passes():
            pass_.backward(nn.functional.mse_loss(model(x), y))
        scaler.step(opt)
        scaler.update()
        assert scaler.get_scale() == 1024.0
    finally:
        torch.set_default_dtype(torch.float32)
