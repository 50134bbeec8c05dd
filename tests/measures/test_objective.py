"""A plan driven by an objective, which never moves the model, gives the gradient that the engine's passes give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import steppe
from steppe.measures.objective import Objective

OPTIONS = {"ssam-f": {"samples": 4}, "sa-sam": {}, "sa-sgd": {}}


def problem():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    return model, torch.randn(20, 6, dtype=torch.float64), torch.randint(0, 3, (20,))


def losses(out, y):
    return nn.functional.cross_entropy(out, y, reduction="none")


@pytest.mark.parametrize("name", sorted(steppe.METHODS))
def test_an_objective_drives_every_plan_to_the_gradient_of_the_engine(name):
    model, x, y = problem()
    mask = torch.arange(20) % 3 == 0
    opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.1), model=model, seed=3, **OPTIONS.get(name, {}))
    for pass_ in opt.passes(mask=mask):
        a, b = pass_.rows(x, y)
        pass_.backward(losses(model(a), b))
    got = [p.grad.clone() for p in model.parameters()]
    before = [p.detach().clone() for p in model.parameters()]
    want = Objective(model, losses, [(x, y)]).drive(opt.method, seed=3, mask=mask, lr=0.1, weight_decay=0.0)
    for g, w in zip(got, want.tensors, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-12)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_batches_are_weighted_by_their_rows_and_rows_need_one_batch():
    model, x, y = problem()
    parts = Objective(model, nn.functional.cross_entropy, [(x[:13], y[:13]), (x[13:], y[13:])])
    whole = Objective(model, nn.functional.cross_entropy, [(x, y)])
    torch.testing.assert_close(parts.read(steppe.Probe()).loss, whole.read(steppe.Probe()).loss)
    with pytest.raises(ValueError, match="one batch"):
        parts.drive(steppe.PerPart(steppe.SAM(), 2))
