"""Every optimizer of torch, and some of another library, is a base: a step of SAM is two passes and the base's step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe

REFUSED = {"LBFGS", "Adadelta"}  # LBFGS calls its closure by itself: tests/optim/test_engine_precision.py
OTHER_INPUT = {"SparseAdam"}  # takes sparse gradients only: tests/optim/test_engine_precision.py
TORCH = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)
OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9, "nesterov": True}}
ELSEWHERE = ["Lion", "AdaBelief", "Adan", "Lamb"]

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


def setting() -> tuple[nn.Linear, Tensor, Tensor]:
    """One matrix without bias: Muon takes matrices only."""
    torch.manual_seed(0)
    return nn.Linear(6, 3, bias=False).double(), torch.randn(20, 6).double(), torch.randint(3, (20,))


def by_hand(make: Make, rho: float, steps: int) -> Tensor:
    model, x, y = setting()
    [w] = model.parameters()
    base = make([w])
    for _ in range(steps):
        start = w.detach().clone()
        [grad] = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), [w])
        with torch.no_grad():
            w.add_(rho * grad / grad.norm())
        [w.grad] = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), [w])
        with torch.no_grad():
            w.copy_(start)
        base.step()
    return w.detach()


def by_steppe(make: Make, rho: float, steps: int) -> Tensor:
    model, x, y = setting()
    opt = steppe.sam(make(model.parameters()), rho=rho, model=model)
    for _ in range(steps):
        for pass_ in opt.passes():
            pass_.backward(nn.functional.cross_entropy(model(x), y))
        opt.step()
    return model.weight.detach()


def check(make: Make) -> None:
    ours, expected = by_steppe(make, 0.3, 4), by_hand(make, 0.3, 4)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert (expected - by_hand(make, 0.0, 4)).abs().max() > 1e-9  # the radius matters, so the first pass does


@pytest.mark.parametrize("name", [n for n in TORCH if n not in REFUSED | OTHER_INPUT])
def test_every_optimizer_of_torch_is_a_base(name: str) -> None:
    kind: Any = getattr(torch.optim, name)
    check(lambda params: kind(params, lr=0.05, **OPTIONS.get(name, {})))


def test_a_base_with_an_option_of_the_methods_name_is_an_error() -> None:
    """Adadelta's decay rate is called rho too: the radius would replace it."""
    base = torch.optim.Adadelta(setting()[0].parameters(), rho=0.8)
    with pytest.raises(ValueError, match="Adadelta has an option rho of its own"):
        steppe.sam(base, rho=0.1)
    assert base.param_groups[0]["rho"] == 0.8
    steppe.SharpnessAware(base, steppe.Plain())  # has no radius
    assert base.param_groups[0]["rho"] == 0.8


def test_the_list_is_that_of_torch() -> None:
    assert set(TORCH) >= REFUSED | OTHER_INPUT | {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop"}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_optimizers_of_another_library_are_bases(name: str) -> None:
    others: Any = pytest.importorskip("pytorch_optimizer", reason="an earlier .venv: `make test` installs it")
    check(lambda params: getattr(others, name)(params, lr=0.01))
