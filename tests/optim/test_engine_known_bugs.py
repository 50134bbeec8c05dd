"""What widely used implementations get wrong about an optimizer's state: each was reproduced, each is a test here."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from registry import Net, batch, copied, same, torch_closure
from torch import nn

import steppe


def setting() -> tuple[Net, Any]:
    torch.manual_seed(0)
    model = Net(dropout=0.0).double()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, steppe.SharpnessAware(base, steppe.SAM(0.5), model=model)


def test_the_state_dict_holds_the_momentum() -> None:
    model, opt = setting()
    opt.step(torch_closure(model, opt, 0))
    state = opt.state_dict()["state"]
    assert all(state[i]["momentum_buffer"].any() for i, _ in enumerate(model.parameters()))


def test_the_state_dict_holds_no_copy_of_the_weights() -> None:
    model, opt = setting()
    opt.step(torch_closure(model, opt, 0))
    weights = [p.detach() for p in model.parameters()]
    kept = [t for slots in opt.state_dict()["state"].values() for t in slots.values()]
    assert not any(t.shape == w.shape and torch.equal(t, w) for t in kept for w in weights)
    assert {name for slots in opt.state_dict()["state"].values() for name in slots} == {"momentum_buffer"}


def test_a_parameter_group_can_be_added() -> None:
    model, opt = setting()
    late = nn.Linear(8, 1).double()
    opt.add_param_group({"params": late.parameters()})
    before = copied(late.state_dict())
    opt.step(lambda pass_: pass_.backward((late(model.first(batch(0)[0])) - 1).square().mean()))
    assert not torch.equal(late.weight, before["weight"])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_has_a_base_optimizer_of_its_own(clone: Any) -> None:
    model, opt = setting()
    opt.step(torch_closure(model, opt, 0))
    twin_model, twin = clone((model, opt))
    assert twin.base is not opt.base
    before = copied(model.state_dict())
    twin.step(torch_closure(twin_model, twin, 1))
    same(copied(model.state_dict()), before)
    opt.step(torch_closure(model, opt, 1))
    same(copied(model.state_dict()), copied(twin_model.state_dict()))
