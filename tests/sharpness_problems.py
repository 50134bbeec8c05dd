"""Losses given as a function of one flat vector, and small ReLU networks, as objectives to measure sharpness on."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import pi

import torch
from problems import QuadraticBowl, each_output, random_vector
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Elementwise
from steppe.core.metric import CustomScales
from steppe.measures.objective import Objective

Function = Callable[[Tensor], Tensor]  # a number for one flat vector

FLOAT = torch.float64
MAGNITUDE = Elementwise(0.0, everywhere=True)  # T = |w|: the scale of adaptive sharpness


class Surface(nn.Module):
    """L = f(w) for every row of the input, w in two tensors."""

    def __init__(self, f: Function, start: Tensor):
        super().__init__()
        self.f = f
        half = (len(start) + 1) // 2
        self.head, self.tail = nn.Parameter(start[:half].clone()), nn.Parameter(start[half:].clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.f(torch.cat([self.head, self.tail])).expand(len(x))


def surface(f: Function, start: Tensor) -> Objective:
    return Objective(Surface(f, start), each_output, (torch.zeros(2, 1), torch.zeros(2)))


def bowl(hessian: Tensor, start: Tensor, slope: Tensor | None = None) -> Objective:
    """A quadratic with this Hessian, whose gradient at the start is `slope`, or else that of w'Hw / 2."""
    tilt = torch.zeros_like(start) if slope is None else slope - hessian @ start
    row = torch.cat([torch.ones(1, dtype=start.dtype), tilt])
    return Objective(QuadraticBowl(hessian, start), each_output, (row.expand(2, -1), torch.zeros(2)))


def waves(seed: int = 0, d: int = 2, frequency: float = 1.0) -> Function:
    """A sum of four plane waves: hills and hollows everywhere."""
    heights, phases = random_vector(4, seed), 2 * pi * random_vector(4, seed + 1)
    directions = frequency * random_vector(4 * d, seed + 2).reshape(4, d)
    return lambda w: (heights * torch.sin(directions @ w + phases)).sum()


def scaled_by(scales: Tensor) -> CustomScales:
    """The scales of a surface or a bowl, from one flat vector."""
    half = (len(scales) + 1) // 2
    return CustomScales([scales[:half], scales[half:]])


def network(seed: int = 0, activation: type[nn.Module] = nn.ReLU, rows: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with two hidden layers of one shape, and data for it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(4, 5), activation(), nn.Linear(5, 5), activation(), nn.Linear(5, 3)
        return nn.Sequential(*layers).double(), torch.randn(rows, 4, dtype=FLOAT), torch.randint(0, 3, (rows,))


def classifier(seed: int = 0, activation: type[nn.Module] = nn.ReLU) -> Objective:
    model, x, y = network(seed, activation)
    return Objective(model, cross_entropy, (x, y))


def rescaled(model: nn.Module, up: float) -> nn.Module:
    """The same function of a ReLU network of `network`, with the first layer scaled up and the second one down."""
    other = deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(up), other[0].bias.mul_(up), other[2].weight.div_(up)
    return other
