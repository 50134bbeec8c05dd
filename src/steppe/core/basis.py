"""Orthonormal bases of a few vectors, and vectors as flat tensors."""

from __future__ import annotations

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
        self._shapes = [p.shape for p in self._params]
        self._rounds = any(p.dtype is not space.precision for p in self._params)
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
        removed = torch.zeros(0, dtype=torch.float64, device="cpu")
        if self._size:
            some = self._inner(entries, first, self._size)
            self._add_(entries, some, first, -1.0)
            every = self._inner(entries, 0, self._size)
            self._add_(entries, every, 0, -1.0)
            removed = every.double().cpu()
            removed[first:] += some.cpu()

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
        if self._rounds:
            for x, rounded in zip(entries, self._join(v), strict=True):
                x.copy_(rounded)
        return v

    def append(self) -> None:
        """Adds the vector in the next row."""
        self._size += 1

    def coefficients(self, v: Vector, start: int, stop: int) -> Tensor:
        """The inner products of `v` with a range of the vectors, of which the next row may be one, on the host."""
        return self._inner(self._join(v), start, stop).double().cpu()

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
            for k, part in zip(members, x.split_with_sizes(sizes), strict=True):
                tensors[k] = part.view(self._shapes[k])
        if self._rounds:
            tensors = [x.to(p.dtype) for x, p in zip(tensors, self._params, strict=True)]
        return self.space.vector(tensors)

    def _inner(self, entries: list[Tensor], start: int, stop: int) -> Tensor:
        """The inner products with a range of the vectors, of entries per device; a sum over devices is on the host."""
        blocks = self._rows(start, stop)
        if not blocks:
            return torch.zeros(0, dtype=torch.float64, device="cpu")
        each = [[block[k] @ x for block in blocks] for k, x in enumerate(entries)]
        totals = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in each]
        return totals[0] if len(totals) == 1 else torch.stack([x.double().cpu() for x in totals]).sum(0)

    def _add_(self, entries: list[Tensor], coefficients: Tensor, start: int = 0, factor: float = 1.0) -> None:
        """Adds `factor` times the sum of the vectors from one on times coefficients to entries per device."""
        stop = start + len(coefficients)
        for x, *blocks in zip(entries, *self._rows(start, stop), strict=True):
            done, numbers = 0, coefficients.to(x)
            for rows in blocks:
                some = numbers if len(blocks) == 1 else numbers[done : done + len(rows)]
                x.addmv_(rows.mT, some, alpha=factor)
                done += len(some)

    def _rows(self, start: int, stop: int) -> list[list[Tensor]]:
        """The vectors in this range, block by block, one matrix per device."""
        return [
            [rows[max(start - k * GROWTH, 0) : stop - k * GROWTH] for rows in self._blocks[k]]
            for k in range(start // GROWTH, -(-stop // GROWTH))
        ]


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
