"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .vector import Space, Vector, copy_

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
        return self._inner(self._entries(v), start)

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        if not len(coefficients):
            return self.space.zeros()
        return Vector(self.space, [x.to(w.dtype) for x, w in self._chunks(self._sums(coefficients))])

    def remove_(self, v: Vector) -> Tensor:
        """Makes `v` orthogonal to the vectors, twice because of rounding, and returns what it removes."""
        removed = torch.zeros(self._size, dtype=torch.float64, device="cpu")
        if self._size:
            entries = self._entries(v)
            for _ in range(2):
                inside = self._inner(entries)
                for one, total in zip(entries, self._sums(inside), strict=True):
                    one.sub_(total)
                removed += inside
            copy_(v._writable(), [x for x, _ in self._chunks(entries)])
        return removed

    def _inner(self, entries: list[Tensor], start: int = 0) -> Tensor:
        """The inner products with the vectors from one on, of entries per device."""
        totals = torch.zeros(self._size - start, dtype=torch.float64, device="cpu")
        for blocks, there in zip(self._blocks, entries, strict=True):
            if len(totals):
                products = [rows @ there for rows in _rows(blocks, start, self._size)]
                totals += (torch.cat(products) if len(products) > 1 else products[0]).double().cpu()
        return totals

    def _sums(self, coefficients: Tensor) -> list[Tensor]:
        """The entries per device of the vectors' sum with these coefficients."""
        sums = []
        for blocks in self._blocks:
            there = coefficients.to(blocks[0])
            total = blocks[0].new_zeros(blocks[0].shape[1])
            for start, rows in zip(range(0, len(there), GROWTH), _rows(blocks, 0, len(there)), strict=True):
                total.addmv_(rows.mT, there[start : start + GROWTH])
            sums.append(total)
        return sums

    def _chunks(self, entries: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The chunks of a vector with these entries per device, each beside that of the weights."""
        like = self.space.weights().chunks
        chunks = list(like)
        for members, there in zip(self._members, entries, strict=True):
            for k, part in zip(members, there.split_with_sizes([like[k].numel() for k in members]), strict=True):
                chunks[k] = part.view(like[k].shape)
        return list(zip(chunks, like, strict=True))

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
