"""Weights that lie side by side train bitwise as scattered ones do, and nobody mistakes other memory for a stack."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import steppe
from steppe.optim.weights import stack_of


def network():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(6, 3))
    model[3].weight = model[0].weight  # tied
    return model


def trained(model, name, steps=5):
    torch.manual_seed(1)
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = steppe.build(name, base, model=model)
    for _ in range(steps):
        opt.step(lambda pass_: pass_.backward(nn.functional.cross_entropy(model(x), y)))
    return opt


@pytest.mark.parametrize("name", ["sam", "asam", "frob-sam", "gsam", "looksam", "sa-sam", "rsam", "msam"])
def test_training_is_bitwise_the_same(name):
    model = steppe.contiguous_(network())
    trained(model, name)
    parameters = list(model.parameters())
    assert len({p.untyped_storage().data_ptr() for p in parameters}) < len(parameters)  # still contiguous
    plain = network()
    trained(plain, name)
    assert all(torch.equal(a, b) for a, b in zip(parameters, plain.parameters(), strict=True))


def test_values_ties_and_files_survive(tmp_path):
    before = {k: v.clone() for k, v in network().state_dict().items()}
    model = steppe.contiguous_(network())
    assert model[3].weight is model[0].weight
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    tied = {k: v for k, v in model.state_dict().items() if k != "3.weight"}
    save_file(tied, tmp_path / "weights.safetensors")
    assert all(torch.equal(v, before[k]) for k, v in load_file(tmp_path / "weights.safetensors").items())


def test_memory_that_moved_since_is_noticed():
    """A stack that is no longer a parameter's memory would be perturbed in its place, and the parameter not."""
    ends = []
    for model in (steppe.contiguous_(network()), network()):
        opt = trained(model, "sam", steps=1)
        model[6].weight.data = model[6].weight.data.clone()
        x, y = torch.ones(16, 6), torch.zeros(16, dtype=torch.long)
        for _ in range(2):
            opt.step(lambda pass_, m=model, x=x, y=y: pass_.backward(nn.functional.cross_entropy(m(x), y)))
        ends.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_what_is_a_stack_and_what_is_not():
    stack = torch.arange(24.0).view(4, 2, 3)
    rows = list(stack.unbind(0))
    assert torch.equal(stack_of(rows), stack)
    assert stack_of(rows).data_ptr() == stack.data_ptr()
    assert torch.equal(stack_of(rows[::2]), stack[::2])
    for scattered in (rows[::-1], [rows[0], rows[1], rows[3]], [torch.zeros(2, 3) for _ in range(3)]):
        assert stack_of(scattered) is None
    assert stack_of([rows[0], rows[0]]) is None, "one tensor twice is no stack"
    assert stack_of([r.t() for r in rows]) is None
