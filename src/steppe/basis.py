"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .vector import Space, Vector

GROWTH = 8  # rows added when a basis is full: fewer copies than one at a time, less waste than doubling


class Basis:
    """Orthonormal vectors, added one at a time; kept as one matrix a device, so that projecting costs two products."""

    def __init__(self, space: Space):
        self.space, self._size = space, 0
        chunks = space.weights().chunks
        self._members = [[k for k, x in enumerate(chunks) if x.device == device] for device in space.devices]
        counts = [sum(chunks[k].numel() for k in members) for members in self._members]
        self._rows = [
            torch.empty(0, count, dtype=space.precision, device=device)
            for count, device in zip(counts, space.devices, strict=True)
        ]

    def __len__(self) -> int:
        return self._size

    def append(self, v: Vector) -> None:
        """Adds a unit vector that is orthogonal to the others."""
        for d, entries in enumerate(self._entries(v)):
            rows = self._rows[d]
            if self._size == len(rows):
                larger = rows.new_empty(self._size + GROWTH, rows.shape[1])
                larger[: self._size] = rows
                rows = self._rows[d] = larger
            rows[self._size] = entries
        self._size += 1

    def coefficients(self, v: Vector, first: int | None = None) -> Tensor:
        """The inner products of `v` with the vectors, or with the first few, on the host."""
        n = self._size if first is None else first
        parts = [rows[:n] @ entries for rows, entries in zip(self._rows, self._entries(v), strict=True)]
        return torch.stack([p.double().cpu() for p in parts]).sum(0)

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        n, like = len(coefficients), self.space.weights().chunks
        chunks = list(like)
        for members, rows in zip(self._members, self._rows, strict=True):
            parts = (coefficients.to(rows) @ rows[:n]).split_with_sizes([like[k].numel() for k in members])
            for k, part in zip(members, parts, strict=True):
                chunks[k] = part.view(like[k].shape).to(like[k].dtype)
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

    def _entries(self, v: Vector) -> list[Tensor]:
        """All entries of a vector, end to end for each device."""
        chunks, precision = v.chunks, self.space.precision
        return [torch.cat([chunks[k].reshape(-1).to(precision) for k in members]) for members in self._members]


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
