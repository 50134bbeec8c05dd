"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot, inf

import torch
from torch import Tensor

from .vector import TINY, Space, Vector

GROWTH = 8  # rows per block of memory: few products, and little unused memory


class Basis:
    """Orthonormal vectors, stored as rows of a few matrices per device, for fast projections.

    They are added one at a time: `orthogonalise` writes a vector without its part along the others into the next row,
    `normalise` gives it the length 1, and `append` adds it. All work is done in that row, because new memory takes
    longer than the arithmetic.
    """

    def __init__(self, space: Space):
        self.space, self._size = space, 0
        self._params = space.locals()
        self._members = [[k for k, p in enumerate(self._params) if p.device == device] for device in space.devices]
        self._sizes = [[self._params[k].numel() for k in members] for members in self._members]
        self._blocks: list[list[Tensor]] = []  # of GROWTH rows, one matrix per device

    def __len__(self) -> int:
        return self._size

    def orthogonalise(self, v: Vector, first: int = 0) -> tuple[Tensor, float]:
        """Writes `v` without its part along the vectors into the next row; returns its coefficients and what is left.

        Twice because of rounding. The first time, the vectors from `first` on are enough if `v` has little more than
        rounding errors along the others.
        """
        block, row = divmod(self._size, GROWTH)
        if block == len(self._blocks):
            where = zip(self._sizes, self.space.devices, strict=True)
            precision = self.space.precision
            self._blocks.append([torch.empty(GROWTH, sum(n), dtype=precision, device=device) for n, device in where])
        entries = [rows[row] for rows in self._blocks[block]]
        self._join(v, entries)
        removed = torch.zeros(self._size, dtype=torch.float64, device="cpu")
        for start in (first, 0) if self._size else ():
            inside = self._inner(entries, start, self._size)
            self._add_(entries, inside, start, -1.0)
            removed[start:] += inside

        def norm(dtype: torch.dtype) -> float:
            return hypot(*(float(torch.linalg.vector_norm(x, dtype=dtype)) for x in entries))

        length = norm(self.space.precision)
        if not TINY**0.5 < length < inf:  # squares of float32 numbers may have overflowed or vanished
            length = norm(torch.float64)
        return removed, length

    def normalise(self, length: float) -> Vector:
        """The vector in the next row over its length, in the row's memory; rounded if the weights have another type."""
        block, row = divmod(self._size, GROWTH)
        entries = [rows[row] for rows in self._blocks[block]]
        for x in entries:
            x.mul_(1 / length)
        v = self._vector(entries)
        if any(p.dtype is not self.space.precision for p in self._params):
            for x, rounded in zip(entries, self._join(v), strict=True):
                x.copy_(rounded)
        return v

    def append(self) -> None:
        """Adds the vector in the next row."""
        self._size += 1

    def coefficients(self, v: Vector, start: int, stop: int) -> Tensor:
        """The inner products of `v` with a range of the vectors, of which the next row may be one, on the host."""
        return self._inner(self._join(v), start, stop)

    def combined(self, coefficients: Tensor) -> Vector:
        """The sum of the vectors times coefficients, which may be fewer than the vectors."""
        if not len(coefficients):
            return self.space.zeros()
        entries = [rows.new_zeros(rows.shape[1]) for rows in self._blocks[0]]
        self._add_(entries, coefficients)
        return self._vector(entries)

    def _join(self, v: Vector, out: list[Tensor] | None = None) -> list[Tensor]:
        """All entries of a vector, one tensor per device."""
        tensors = v.tensors
        parts = [[tensors[k].reshape(-1) for k in members] for members in self._members]
        if out is None:
            return [torch.cat(there).to(self.space.precision) for there in parts]
        return [torch.cat(there, out=x) for there, x in zip(parts, out, strict=True)]

    def _vector(self, entries: list[Tensor]) -> Vector:
        """The vector with these entries, whose memory it shares where the types are the same."""
        tensors = list(self._params)
        for members, sizes, x in zip(self._members, self._sizes, entries, strict=True):
            for k, part in zip(members, torch.split(x, sizes), strict=True):
                tensors[k] = part.view_as(tensors[k]).to(tensors[k].dtype)
        return self.space.vector(tensors)

    def _inner(self, entries: list[Tensor], start: int, stop: int) -> Tensor:
        """The inner products with a range of the vectors, of entries per device."""
        blocks = list(self._rows(start, stop))
        totals = torch.zeros(stop - start, dtype=torch.float64, device="cpu")
        for k, x in enumerate(entries if blocks else ()):
            totals += torch.cat([block[k] @ x for block in blocks]).cpu()
        return totals

    def _add_(self, entries: list[Tensor], coefficients: Tensor, start: int = 0, factor: float = 1.0) -> None:
        """Adds `factor` times the sum of the vectors from one on times coefficients to entries per device."""
        done = 0
        for block in self._rows(start, start + len(coefficients)):
            some = coefficients[done : done + len(block[0])]
            for x, rows in zip(entries, block, strict=True):
                x.addmv_(rows.mT, some.to(x), alpha=factor)
            done += len(some)

    def _rows(self, start: int, stop: int) -> Iterator[list[Tensor]]:
        """The vectors in this range, block by block, one matrix per device."""
        for k in range(start // GROWTH, -(-stop // GROWTH)):
            yield [rows[max(start - k * GROWTH, 0) : stop - k * GROWTH] for rows in self._blocks[k]]


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
