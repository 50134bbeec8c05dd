"""A loss on fixed data as a function of a displacement of the weights; the model itself is never touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..draw import Draw
from ..probe import Method, Probe, Reading, follow
from ..roles import roles_of
from ..rows import select, whole
from ..vector import Space, Vector

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Objective:
    """The mean of `loss_fn(model(x), y)` over fixed batches, weighted by their rows."""

    model: nn.Module
    loss_fn: Callable[[Tensor, Tensor], Tensor]  # a mean, or one loss a row
    batches: Sequence[Batch]

    @cached_property
    def space(self) -> Space:
        params = [p for p in self.model.parameters() if p.requires_grad]
        roles = roles_of(self.model, [])
        return Space(params, roles=[roles[id(p)] for p in params])

    def read(self, probe: Probe) -> Reading:
        """Answers a probe by evaluating the model's function at other weights."""
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        moves = probe.at.tensors if probe.at is not None else [torch.zeros_like(p) for p in named.values()]
        with torch.enable_grad():
            places = [(p.detach() + d).requires_grad_() for p, d in zip(named.values(), moves, strict=True)]
            losses, rows = zip(
                *(self._loss(dict(zip(named, places, strict=True)), b, probe) for b in self.batches), strict=True
            )
            loss = sum(each.mean() * n for each, n in zip(losses, rows, strict=True)) / sum(rows)
            grads = torch.autograd.grad(loss, places, allow_unused=True, materialize_grads=True) if probe.grad else None
        grad = self.space.vector(grads) if grads is not None else None
        each = torch.cat([x.detach().reshape(-1) for x in losses]) if losses[0].ndim else None
        return Reading(grad, loss.detach(), lambda x: x, each, sum(len(x) for x, _ in self.batches))

    def _loss(self, params: Mapping[str, Tensor], batch: Batch, probe: Probe) -> tuple[Tensor, int]:
        if probe.rows is not whole and len(self.batches) > 1:
            raise ValueError(f"a probe of some rows needs an objective of one batch, not {len(self.batches)}")
        (x, y), _ = select(probe.rows, batch)
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}  # a forward pass may write into them
        return self.loss_fn(functional_call(self.model, (dict(params), buffers), (x,)), y), len(x)

    def drive(self, method: Method, *, seed: int = 0, mask: Tensor | None = None, **options: Any) -> Vector:
        """The gradient that an optimizer's first step with this method would take here."""
        return follow(method.plan(FirstStep(self, seed, mask, {**method.options(), **options})), self.read)


@dataclass
class FirstStep:
    """What a plan sees when an objective answers it: no history, and no workers but this one."""

    objective: Objective
    seed: int
    mask: Tensor | None
    options: Mapping[str, Any]
    step: int = 0
    alone: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Vector] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        return self.objective.space

    @property
    def weights(self) -> Vector:
        return self.space.weights()

    def option(self, name: str) -> Any:
        return self.options[name]

    def key(self, sample: int) -> tuple[int, ...]:
        return (self.seed, self.step, sample)

    def draw(self, sample: int, grad: Vector) -> Draw:
        return Draw(self.space, self.key(sample), self.weights, grad)

    def momentum(self) -> Vector | None:
        return None

    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None:
        return self.memory.get(slot)

    def remember(self, slot: str, vector: Vector) -> None:
        self.memory[slot] = vector

    def average_(self, vector: Vector) -> Vector:
        return vector
