"""Buffers that no pass moves are nobody's business: of any dtype, and not copied once that is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import steppe


class Rotated(nn.Module):
    """A layer with a complex table that its forward pass reads and never writes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.turn.real


@pytest.mark.parametrize("name", ["none", "sam"])
def test_a_constant_complex_buffer(name):
    model, x = Rotated(), torch.randn(8, 4)
    opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    before = model.turn.clone()
    for _ in range(3):
        opt.step(lambda turn: turn.backward(model(x).square().mean()))
    assert torch.equal(model.turn, before)
