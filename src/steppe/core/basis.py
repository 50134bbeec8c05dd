"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .vector import Space, Vector

GROWTH = 8  # rows per block of memory: few products, and little unused memory


class Basis:
    """Orthonormal vectors, added one at a time; stored as rows of a few matrices per device, for fast projections."""

    def __init__(self, space: Space):
        self.space, self._size = space, 0
        chunks = space.weights().chunks
        self._members = [[k for k, x in enumerate(chunks) if x.device == device] for device in space.devices]
        self._blocks: list[list[Tensor]] = [[] for _ in space.devices]  # of GROWTH rows each

    def __len__(self) -> int:
        return self._size

    def append(self, v: Vector) -> None:
        """Adds a unit vector that is orthogonal to the others."""
        block, row = divmod(self._size, GROWTH)
        for blocks, entries in zip(self._blocks, self._entries(v), strict=True):
            if block == len(blocks):
                blocks.append(entries.new_empty(GROWTH, len(entries)))
            blocks[block][row] = entries
        self._size += 1

    def coefficients(self, v: Vector, start: int = 0) -> Tensor:
        """The inner products of `v` with the vectors from one on, on the host."""
        totals = torch.zeros(self._size - start, dtype=torch.float64, device="cpu")
        for blocks, entries in zip(self._blocks, self._entries(v), strict=True):
            if len(totals):
                rows = _rows(blocks, start, self._size)
                totals += torch.cat([some @ entries for some in rows]).double().cpu()
        return totals

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        n, like = len(coefficients), self.space.weights().chunks
        if not n:
            return self.space.zeros()
        chunks = list(like)
        for members, blocks in zip(self._members, self._blocks, strict=True):
            there = coefficients.to(blocks[0])
            total = blocks[0].new_zeros(blocks[0].shape[1])
            for start, rows in zip(range(0, n, GROWTH), _rows(blocks, 0, n), strict=True):
                total.addmv_(rows.mT, there[start : start + GROWTH])
            parts = total.split_with_sizes([like[k].numel() for k in members])
            for k, part in zip(members, parts, strict=True):
                chunks[k] = part.view(like[k].shape).to(like[k].dtype)
        return Vector(self.space, chunks)

    def remove_(self, v: Vector) -> Tensor:
        """Makes `v` orthogonal to the vectors, twice because of rounding, and returns what it removes."""
        removed = self.coefficients(v)
        if len(removed):
            v.add_(self.combined(removed), -1.0)
            rest = self.coefficients(v)
            v.add_(self.combined(rest), -1.0)
            removed = removed + rest
        return removed

    def _entries(self, v: Vector) -> list[Tensor]:
        """All entries of a vector, concatenated per device."""
        chunks, precision = v.chunks, self.space.precision
        return [torch.cat([chunks[k].reshape(-1).to(precision) for k in members]) for members in self._members]


def _rows(blocks: list[Tensor], start: int, stop: int) -> list[Tensor]:
    """The rows from `start` to `stop` of some blocks."""
    firsts = range(0, stop, GROWTH)
    parts = [rows[max(start - f, 0) : stop - f] for f, rows in zip(firsts, blocks, strict=False)]
    return [part for part in parts if len(part)]


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
