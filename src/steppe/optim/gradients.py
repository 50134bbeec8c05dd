"""Between `p.grad` and vectors: what a backward pass left, and what the base optimizer is to find."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shards import local, shard_like
from ..vector import Space, Vector, scale_


class Gradients:
    """The `p.grad` of all parameters of a space, and which of them any pass of the step has reached."""

    def __init__(self, space: Space, *, keep: bool, own: bool, unit: Tensor | None):
        self.space = space
        self._kept = [p.grad for p in space.params] if keep else [None] * len(space.params)
        self._keep = keep
        self._own = own  # the next backward pass may write into what this one leaves
        self._unit = unit  # what the loss was multiplied by
        self._reached = [False] * len(space.params)
        self._left: Vector | None = None  # the last pass's gradient, where `p.grad` is that already

    def clear(self) -> None:
        for p in self.space.params:
            p.grad = None

    def undo(self) -> None:
        """As before the step."""
        for p, g in zip(self.space.params, self._kept, strict=True):
            p.grad = g

    def collect(self) -> Vector:
        """What the pass left, unscaled, with zeros where it left nothing."""
        found = [p.grad for p in self.space.params]
        tensors: list[Tensor] = [g for g in found if g is not None and not g.is_sparse]  # usually all of them
        whole = len(tensors) == len(found)
        if whole:
            self._reached = [True] * len(found)
        else:
            self._reached = [old or g is not None for old, g in zip(self._reached, found, strict=True)]
            tensors = [_dense(p, g) for p, g in zip(self.space.params, found, strict=True)]
        if self.space.sharded:
            tensors = [local(g) for g in tensors]
        if self._own:
            tensors = [g.clone() for g in tensors]
        if self._unit is not None:
            scale_(tensors, 1 / self._unit)
        grad = self.space.vector(tensors)
        self._left = grad if whole and not (self._own or self._keep or self.space.sharded) else None
        return grad

    def deliver(self, direction: Vector, health: Tensor | None) -> None:
        """Writes the direction into `p.grad`; a parameter that no pass reached keeps none."""
        tensors = direction.tensors
        if self._unit is not None:
            factor = self._unit
            if health is not None:  # an overflow in any pass must reach the scaler
                factor = factor * torch.where(torch.isfinite(health), 1.0, torch.nan).to(factor)
            scale_(tensors, factor)
        if direction is self._left and direction.intact:
            return
        for p, g, reached, kept in zip(self.space.params, tensors, self._reached, self._kept, strict=True):
            raw = p.grad
            if not reached:
                p.grad = kept
                continue
            if raw is not None and raw.layout is not torch.strided:
                p.grad = g.to_sparse(raw.sparse_dim())
            elif raw is not g:
                p.grad = shard_like(p, g)
            if kept is not None:
                p.grad = p.grad + kept  # type: ignore[operator]


def _dense(p: Tensor, g: Tensor | None) -> Tensor:
    if g is None:
        return torch.zeros_like(p)
    return g if g.layout is torch.strided else g.to_dense()
