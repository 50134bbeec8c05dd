"""Learning rates as functions of the step, against torch's own schedulers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torch_has

from steppe.training.config import Config
from steppe.training.schedule import learning_rate

STEPS, WARM = 20, 4
AFTER = STEPS - WARM

ORACLES: dict[str, Any] = {
    "constant": lambda opt, steps: torch_has.ConstantLR(opt, factor=1.0),
    "cosine": lambda opt, steps: torch_has.CosineAnnealingLR(opt, steps),
    "linear": lambda opt, steps: torch_has.LinearLR(opt, 1.0, 1e-300, steps),
}


def followed(scheduler: Any, opt: torch.optim.Optimizer, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        scheduler.step()
    return rates


def base() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)


@pytest.mark.parametrize("name", ORACLES)
def test_as_torch_has_it(name: str) -> None:
    opt = base()
    rates = followed(ORACLES[name](opt, STEPS), opt, STEPS)
    config = Config(lr=0.3, schedule=name)  # type: ignore[arg-type]
    assert [learning_rate(config, s, STEPS) for s in range(STEPS)] == pytest.approx(rates, abs=1e-12)


def test_multistep_as_torch_has_it() -> None:
    opt = base()
    rates = followed(torch_has.MultiStepLR(opt, [10, 15], gamma=0.2), opt, STEPS)
    config = Config(lr=0.3, schedule="multistep", milestones=[0.5, 0.75], decay=0.2)
    assert [learning_rate(config, s, STEPS) for s in range(STEPS)] == pytest.approx(rates)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_a_warm_up_comes_first_and_the_fall_has_the_rest(name: str) -> None:
    opt = base()
    grows = torch_has.LinearLR(opt, 1 / WARM, 1.0, WARM - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = followed(grows, opt, WARM)
    opt = base()
    rates += followed(ORACLES[name](opt, AFTER), opt, AFTER)
    config = Config(lr=0.3, schedule=name, warmup=WARM / STEPS)  # type: ignore[arg-type]
    assert [learning_rate(config, s, STEPS) for s in range(STEPS)] == pytest.approx(rates, abs=1e-12)


@given(st.sampled_from(["constant", "cosine", "linear", "multistep"]), st.floats(0, 1), st.integers(1, 200), st.data())
def test_never_above_the_highest_nor_below_zero(schedule: Any, warmup: float, steps: int, data: st.DataObject) -> None:
    config = Config(lr=0.5, schedule=schedule, warmup=warmup)
    assert 0 <= learning_rate(config, data.draw(st.integers(0, steps - 1)), steps) <= 0.5
