"""Between `p.grad` and vectors: what a backward pass left, and what the base optimizer is to find."""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import Tensor

from ..core.shards import local, shard_like
from ..core.vector import Space, Vector, scale_

_grad = attrgetter("grad")


class Gradients:
    """The `p.grad` of all parameters of a space, and which of them any pass of the step has reached."""

    def __init__(self, space: Space, *, keep: bool, own: bool, unit: Tensor | None, maximize: bool = False):
        self.space = space
        self._kept = [p.grad for p in space.params] if keep else [None] * len(space.params)
        self._keep = keep
        self._own = own  # the next backward pass may write into what this one leaves
        self._unit = unit  # what the loss was multiplied by
        self._maximize = maximize  # plans see the gradient of minus the loss
        self._reached = [False] * len(space.params)
        self._last: Vector | None = None  # the last pass's gradient
        self._whole = False  # whether `p.grad` is just that
        self._looked_up: dict[int, list[Tensor]] = {}  # rows of sparse gradients, by parameter

    def clear(self) -> None:
        for p in self.space.params:
            p.grad = None

    def undo(self) -> None:
        """As before the step."""
        for p, g in zip(self.space.params, self._kept, strict=True):
            p.grad = g

    def collect(self, went_back: bool) -> Vector:
        """What the pass left, unscaled, with zeros where it left nothing; a pass that did go back may leave nothing."""
        found: list[Tensor | None] = list(map(_grad, self.space.params))
        tensors: list[Tensor] = [g for g in found if g is not None and not g.is_sparse]  # usually all of them
        whole = len(tensors) == len(found)
        if whole:
            self._reached = [True] * len(found)
        else:
            tensors = [self._dense(i, g) for i, g in enumerate(found)]
        if all(g is None for g in found) and not (went_back and any(self._reached)):
            raise RuntimeError(
                "no parameter of the optimizer has a gradient after this pass: call loss.backward() in the closure, or "
                "turn.backward(loss), on a loss that depends on them, and leave requires_grad on"
            )
        if self.space.sharded:
            tensors = [local(g) for g in tensors]
        if self._own:
            tensors = [g.clone() for g in tensors]
        if self._unit is not None or self._maximize:
            factor = -1.0 if self._maximize else 1.0
            scale_(tensors, factor if self._unit is None else factor / self._unit)
        self._last = self.space.vector(tensors)
        self._whole = whole and not (self._own or self._keep or self.space.sharded)
        return self._last

    def deliver(self, direction: Vector) -> None:
        """Writes the direction, unscaled, into `p.grad`; a parameter that no pass reached keeps none."""
        tensors = direction.tensors
        if self._maximize:
            scale_(tensors, -1.0)
        untouched = direction is self._last and direction.intact
        if untouched and self._whole:
            return
        self._last = None  # its memory is free, unless it is the direction
        for i, (p, g, kept) in enumerate(zip(self.space.params, tensors, self._kept, strict=True)):
            if not self._reached[i]:
                p.grad = kept
                continue
            if i in self._looked_up:
                if not (untouched and p.grad is not None and p.grad.is_sparse):
                    p.grad = self._sparse(i, g)
            elif p.grad is not g:
                p.grad = shard_like(p, g)
            if kept is not None:
                p.grad = kept if p.grad is None else p.grad + kept

    def _dense(self, i: int, g: Tensor | None) -> Tensor:
        if g is None:
            return torch.zeros_like(self.space.params[i])
        self._reached[i] = True
        if not g.is_sparse:
            return g
        self._looked_up.setdefault(i, []).append(g.coalesce().indices())
        return g.to_dense()

    def _sparse(self, i: int, g: Tensor) -> Tensor:
        """`g` at the rows that any pass looked up, as sparse optimizers want it."""
        rows = torch.unique(torch.cat(self._looked_up[i], dim=1), dim=1)
        return torch.sparse_coo_tensor(rows, g[tuple(rows)], g.shape, is_coalesced=True, check_invariants=False)
