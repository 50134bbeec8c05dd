"""Losses and gradients as functions of one flat vector, and the base optimizers spelled out."""

from collections.abc import Callable
from copy import deepcopy

import torch
from problems import Problem
from torch import Tensor, nn
from torch.func import functional_call


class Landscape:
    """The loss on one batch as a function of the flat weights."""

    def __init__(self, model: nn.Module, losses: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor):
        self.model, self.losses, self.x, self.y = model, losses, x, y

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Tensor) -> "Landscape":
        """The same on some rows of the batch."""
        return Landscape(self.model, self.losses, self.x[index], self.y[index])

    def each(self, w: Tensor) -> Tensor:
        params, start = {}, 0
        for name, p in self.model.named_parameters():
            params[name] = w[start : start + p.numel()].view(p.shape)
            start += p.numel()
        return self.losses(functional_call(self.model, params, (self.x,)), self.y)

    def loss(self, w: Tensor) -> Tensor:
        return self.each(w).mean()

    def grad(self, w: Tensor) -> Tensor:
        x = w.detach().clone().requires_grad_()
        return torch.autograd.grad(self.loss(x), x)[0]


class SGD:
    """Momentum without dampening, weight decay added to the gradient."""

    def __init__(self, lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        self.lr, self.beta, self.weight_decay = lr, momentum, weight_decay
        self.momentum: Tensor | None = None

    def step(self, w: Tensor, g: Tensor) -> Tensor:
        g = g + self.weight_decay * w
        self.momentum = g if self.momentum is None else self.beta * self.momentum + g
        return w - self.lr * self.momentum


class AdamW:
    """Decoupled weight decay, then Adam with bias corrections."""

    def __init__(self, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        self.lr, self.weight_decay, self.betas, self.eps = lr, weight_decay, betas, eps
        self.momentum: Tensor | None = None
        self.squares: Tensor | float = 0.0
        self.t = 0

    def step(self, w: Tensor, g: Tensor) -> Tensor:
        self.t += 1
        first, second = self.betas
        w = w * (1 - self.lr * self.weight_decay)
        self.momentum = (1 - first) * g + (0.0 if self.momentum is None else first * self.momentum)
        self.squares = second * self.squares + (1 - second) * g * g
        mean, square = self.momentum / (1 - first**self.t), self.squares / (1 - second**self.t)
        return w - self.lr * mean / (square.sqrt() + self.eps)


Base = SGD | AdamW
Rule = Callable[[Landscape, Tensor, Base, int], Tensor]  # of batch, weights, base optimizer and step: the gradient used


def plain(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
    return land.grad(w)


def trajectory(problem: Problem, rule: Rule, base: Base) -> Tensor:
    """The flat weights after every step of the naive rewrite."""
    model, w, after = deepcopy(problem.model), problem.start, []
    for t, (x, y) in enumerate(problem.batches):
        w = base.step(w, rule(Landscape(model, problem.losses, x, y), w, base, t))
        after.append(w)
    return torch.stack(after)
