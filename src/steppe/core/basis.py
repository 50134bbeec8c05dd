"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

from collections.abc import Iterator

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
        self._blocks: list[list[Tensor]] = []  # of GROWTH rows, one matrix per device

    def __len__(self) -> int:
        return self._size

    def append(self, v: Vector) -> None:
        """Adds a unit vector that is orthogonal to the others."""
        self._entries(v)
        self._size += 1

    def coefficients(self, v: Vector, start: int = 0) -> Tensor:
        """The inner products of `v` with the vectors from one on, on the host."""
        return self._inner(self._entries(v), start)

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        if not len(coefficients):
            return self.space.zeros()
        entries = [x.new_zeros(x.shape[1]) for x in self._blocks[0]]
        self._add_(entries, coefficients)
        chunks = self._chunks(entries)
        return Vector(self.space, [x.to(w.dtype) for x, w in zip(chunks, self.space.weights().chunks, strict=True)])

    def remove_(self, v: Vector, first: int = 0) -> Tensor:
        """Makes `v` orthogonal to the vectors and returns what it removes.

        Twice because of rounding. The first time, the vectors from `first` on are enough if `v` has little more than
        rounding errors along the others.
        """
        removed = torch.zeros(self._size, dtype=torch.float64, device="cpu")
        if self._size:
            entries = self._entries(v)
            for start in (first, 0):
                inside = self._inner(entries, start)
                self._add_(entries, -inside, start)
                removed[start:] += inside
            copy_(v._writable(), self._chunks(entries))
        return removed

    def _inner(self, entries: list[Tensor], start: int) -> Tensor:
        """The inner products with the vectors from one on, of entries per device."""
        totals = torch.zeros(self._size - start, dtype=torch.float64, device="cpu")
        if len(totals):
            blocks = self._rows(start, self._size)
            for products in zip(*([rows @ x for rows, x in zip(block, entries, strict=True)] for block in blocks)):
                totals += torch.cat(products).double().cpu()
        return totals

    def _add_(self, entries: list[Tensor], coefficients: Tensor, start: int = 0) -> None:
        """Adds the sum of the vectors from one on times coefficients to entries per device."""
        for block in self._rows(start, start + len(coefficients)):
            some, coefficients = coefficients.split([len(block[0]), len(coefficients) - len(block[0])])
            for x, rows in zip(entries, block, strict=True):
                x.addmv_(rows.mT, some.to(x))

    def _rows(self, start: int, stop: int) -> Iterator[list[Tensor]]:
        """The vectors in this range, block by block, one matrix per device."""
        for k in range(start // GROWTH, -(-stop // GROWTH)):
            yield [rows[max(start - k * GROWTH, 0) : stop - k * GROWTH] for rows in self._blocks[k]]

    def _chunks(self, entries: list[Tensor]) -> list[Tensor]:
        """The chunks of a vector with these entries per device."""
        chunks = list(self.space.weights().chunks)
        for members, there in zip(self._members, entries, strict=True):
            for k, part in zip(members, torch.split(there, [chunks[k].numel() for k in members]), strict=True):
                chunks[k] = part.view(chunks[k].shape)
        return chunks

    def _entries(self, v: Vector) -> list[Tensor]:
        """All entries of a vector per device, in the memory of the vector that comes next: new memory takes longer."""
        chunks, block = v.chunks, self._size // GROWTH
        if block == len(self._blocks):
            sizes = [
                (there[0], sum(x.numel() for x in there)) for there in ([chunks[k] for k in m] for m in self._members)
            ]
            self._blocks.append([x.new_empty(GROWTH, n, dtype=self.space.precision) for x, n in sizes])
        rows = [there[self._size % GROWTH] for there in self._blocks[block]]
        for row, members in zip(rows, self._members, strict=True):
            torch.cat([chunks[k].reshape(-1) for k in members], out=row)
        return rows


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
