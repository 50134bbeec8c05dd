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
        self._blocks: list[list[Tensor]] = []  # of GROWTH rows, one matrix per device

    def __len__(self) -> int:
        return self._size

    def append(self, v: Vector) -> None:
        """Adds a unit vector that is orthogonal to the others."""
        entries, row = self._entries(v), self._size % GROWTH
        if row == 0:
            self._blocks.append([x.new_zeros(GROWTH, len(x)) for x in entries])
        for rows, x in zip(self._blocks[-1], entries, strict=True):
            rows[row] = x
        self._size += 1

    def coefficients(self, v: Vector, start: int = 0) -> Tensor:
        """The inner products of `v` with the vectors from one on, on the host."""
        return self._inner(self._entries(v), start)

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        if not len(coefficients):
            return self.space.zeros()
        chunks = self._chunks(self._sums(coefficients))
        return Vector(self.space, [x.to(w.dtype) for x, w in zip(chunks, self.space.weights().chunks, strict=True)])

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
            copy_(v._writable(), self._chunks(entries))
        return removed

    def _inner(self, entries: list[Tensor], start: int = 0) -> Tensor:
        """The inner products with the vectors from one on, of entries per device."""
        first = start // GROWTH
        totals = torch.zeros(self._size - first * GROWTH, dtype=torch.float64, device="cpu")
        if len(totals):
            for k, x in enumerate(entries):
                products = [rows[k] @ x for rows in self._blocks[first:]]
                totals += torch.cat(products)[: len(totals)].double().cpu()
        return totals[start - first * GROWTH :]

    def _sums(self, coefficients: Tensor) -> list[Tensor]:
        """The entries per device of the vectors' sum with these coefficients."""
        sums = [rows.new_zeros(rows.shape[1]) for rows in self._blocks[0]]
        for some, rows in zip(torch.split(coefficients, GROWTH), self._blocks, strict=False):
            for total, there in zip(sums, rows, strict=True):
                total.addmv_(there[: len(some)].mT, some.to(there))
        return sums

    def _chunks(self, entries: list[Tensor]) -> list[Tensor]:
        """The chunks of a vector with these entries per device."""
        chunks = list(self.space.weights().chunks)
        for members, there in zip(self._members, entries, strict=True):
            for k, part in zip(members, torch.split(there, [chunks[k].numel() for k in members]), strict=True):
                chunks[k] = part.view(chunks[k].shape)
        return chunks

    def _entries(self, v: Vector) -> list[Tensor]:
        """All entries of a vector, concatenated per device."""
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
