"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .vector import Space, Vector

GROWTH = 8  # rows added when a basis is full: fewer copies than one at a time, less waste than doubling


class Basis:
    """Orthonormal vectors, added one at a time; kept as one matrix a chunk, so that projecting costs two products."""

    def __init__(self, space: Space):
        self.space, self._size = space, 0
        self._rows = [x.new_empty(0, x.numel(), dtype=space.precision) for x in space.weights().chunks]

    def __len__(self) -> int:
        return self._size

    def append(self, v: Vector) -> None:
        """Adds a unit vector that is orthogonal to the others."""
        for k, x in enumerate(v.chunks):
            rows = self._rows[k]
            if self._size == len(rows):
                larger = rows.new_empty(self._size + GROWTH, rows.shape[1])
                larger[: self._size] = rows
                rows = self._rows[k] = larger
            rows[self._size].copy_(x.reshape(-1))
        self._size += 1

    def coefficients(self, v: Vector, first: int | None = None) -> Tensor:
        """The inner products of `v` with the vectors, or with the first few, on the host."""
        n = self._size if first is None else first
        parts = [r[:n] @ x.reshape(-1).to(r) for r, x in zip(self._rows, v.chunks, strict=True)]
        return torch.stack([p.double().cpu() for p in parts]).sum(0)

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        n = len(coefficients)
        chunks = [
            (coefficients.to(r) @ r[:n]).to(x.dtype).view_as(x)
            for r, x in zip(self._rows, self.space.weights().chunks, strict=True)
        ]
        return Vector(self.space, chunks)

    def remove_(self, v: Vector, first: int | None = None) -> Tensor:
        """Makes `v` orthogonal to the vectors, twice for the sake of rounding, and returns what was taken off."""
        taken = self.coefficients(v, first)
        if len(taken):
            v.add_(self.combined(taken), -1.0)
            again = self.coefficients(v, first)
            v.add_(self.combined(again), -1.0)
            taken = taken + again
        return taken


def flat(v: Vector) -> Tensor:
    """All entries in the order of the parameters, as one tensor."""
    return torch.cat([t.reshape(-1) for t in v.tensors])


def unflat(space: Space, entries: Tensor) -> Vector:
    """The vector with these entries in the order of the parameters."""
    tensors, start = [], 0
    for p in space.locals():
        tensors.append(entries[start : start + p.numel()].view(p.shape).to(p))
        start += p.numel()
    return space.vector(tensors)
