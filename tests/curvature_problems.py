"""Objectives with known Hessians, and directions in their spaces."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from oracles import curvature as oracle
from problems import conv_problem, flat_weights, mlp_problem, random_vector
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Vector
from steppe.measures.curvature.forms import Form, hessian
from steppe.measures.curvature.operator import Curvature
from steppe.measures.curvature.spectrum import Dense
from steppe.measures.objective import Objective


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def directions(objective: Objective, n: int) -> list[Vector]:
    """Random ones of length 1, so that errors are relative to the norm of the operator."""
    drawn = [objective.draw(11, i).normal() for i in range(n)]
    return [v.mul_(1 / v.norm()) for v in drawn]


def mlp(rows: tuple[int, ...] = (7, 4, 1)) -> Objective:
    """With LayerNorm, and with batches of unequal size."""
    problem = mlp_problem(steps=1, rows=sum(rows))
    x, y = problem.batches[0]
    return Objective(problem.model, cross_entropy, list(zip(x.split(rows), y.split(rows), strict=True)))


def small(norm: bool = True) -> Objective:
    """The same, with few enough weights for a matrix; without LayerNorm for whom torch misleads."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)]
    model = nn.Sequential(*[m for m in layers if norm or not isinstance(m, nn.LayerNorm)]).double()
    x, y = random_vector(44, seed=1).reshape(11, 4), torch.arange(11) % 3
    return Objective(model, cross_entropy, [(x[:7], y[:7]), (x[7:], y[7:])])


def conv() -> Objective:
    """With BatchNorm, whose statistics are not those of a fresh layer, in eval mode."""
    problem = conv_problem(steps=2, rows=3)
    for x, _ in problem.batches:
        problem.model(x)
    return Objective(problem.model.eval(), cross_entropy, problem.batches)


def matrix(objective: Objective, form: Form = hessian, **options: Any) -> Tensor:
    return Dense(Curvature(objective, form, **options)).matrix


@cache
def right(name: str) -> Tensor:
    """The Hessian of an objective above, by functorch."""
    objective = {"mlp": mlp, "small": small, "conv": conv}[name]()
    f = oracle.mean_loss(objective.model, objective.loss_fn, objective.batches)
    return oracle.hessian(f, flat_weights(objective.model))
