"""Choices of rows of a batch: a probe computes its loss on the rows that it names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .draw import Key, at_step, permutation
from .graph_inputs import from_host


class Rows(Protocol):
    """A choice of rows, made before the batch is known."""

    def index(self, n: int) -> Tensor | slice:
        """The index of the chosen rows in a batch of n."""
        ...


@dataclass(frozen=True)
class AllRows:
    """Every row of the batch, or of the caller's held-out data instead."""

    held_out: bool = False

    def index(self, n: int) -> slice:
        return slice(None)


@dataclass(frozen=True)
class Part:
    """Part `number` of `of` parts, whose sizes differ by at most one row."""

    number: int
    of: int

    def index(self, n: int) -> slice:
        if n < self.of:
            raise ValueError(
                f"cannot make {self.of} parts of a batch of {n} rows: use fewer parts, or drop short batches"
            )
        small, extra = divmod(n, self.of)
        start = self.number * small + min(self.number, extra)
        return slice(start, start + self.size(n))

    def size(self, n: int) -> int:
        """The number of rows in this part of a batch of n."""
        return n // self.of + (self.number < n % self.of)


@dataclass(frozen=True)
class Row:
    """A single row."""

    number: int

    def index(self, n: int) -> slice:
        if self.number >= n:
            raise ValueError(f"row {self.number} is not in a batch of {n} rows: use fewer samples, or larger batches")
        return slice(self.number, self.number + 1)


@dataclass(frozen=True)
class Split:
    """A random share of the rows, or with `rest` the other rows of the same split."""

    share: float
    key: Key
    rest: bool = False

    def index(self, n: int) -> Tensor:
        first = round(self.share * n)
        if not 0 < first < n:
            raise ValueError(
                f"a batch of {n} rows does not split {self.share:g} : {1 - self.share:g}: use larger batches"
            )
        order = permutation(n, *self.key)
        return order[first:] if self.rest else order[:first]


@dataclass(frozen=True, eq=False)
class RowIndex:
    """The rows at these positions of a batch of `of` rows."""

    positions: Tensor | slice
    of: int

    def index(self, n: int) -> Tensor | slice:
        if n != self.of:
            raise ValueError(f"rows were chosen for a batch of {self.of}, but this batch has {n} rows")
        return self.positions


@dataclass(frozen=True)
class Within:
    """The rows that `inner` chooses among those that `outer` chooses."""

    outer: Rows
    inner: Rows

    def index(self, n: int) -> Tensor:
        outer = torch.arange(n, device="cpu")[self.outer.index(n)]
        return outer[self.inner.index(len(outer))]


whole = AllRows()
held_out = AllRows(held_out=True)


def within(outer: Rows, inner: Rows) -> Rows:
    """The rows that `inner` chooses among those of `outer`; held-out data has no outer choice."""
    return inner if inner is held_out else outer if inner is whole else Within(outer, inner)


def count(rows: Rows, n: int) -> int:
    """The number of rows chosen from a batch of n."""
    index = rows.index(n)
    return len(range(n)[index]) if isinstance(index, slice) else len(index)


def select(rows: Rows, tensors: tuple[Any, ...]) -> tuple[Any, int]:
    """The chosen rows of every tensor, and the size of the batch; one tensor in, one tensor out."""
    if not tensors:
        raise TypeError("rows(...) takes the tensors of the batch: x, y = pass_.rows(x, y)")
    lengths = {len(t) for t in tensors}
    if len(lengths) > 1:
        raise ValueError(f"the tensors of one batch have one length, not {sorted(lengths)}")
    n = lengths.pop()
    if n == 0:
        raise ValueError("the batch is empty: its loss has no gradient")
    index = rows.index(n)
    on_device = {device: _index_on(device, rows, index, n) for device in {t.device for t in tensors}}
    selected = tuple(t[on_device[t.device]] for t in tensors)
    return (selected[0] if len(selected) == 1 else selected), n


def _index_on(device: torch.device, rows: Rows, index: Tensor | slice, n: int) -> Tensor | slice:
    if not isinstance(index, Tensor) or index.device.type != "cpu":  # rows that were chosen on the device
        return index

    def fill(buffer: Tensor, step: int | None) -> None:
        chosen = index if step is None else rows_at_step(rows, step).index(n)
        assert isinstance(chosen, Tensor)
        buffer.copy_(chosen, non_blocking=True)

    return from_host(lambda: torch.empty(index.shape, dtype=index.dtype, device=device), fill)


def rows_at_step(rows: Rows, step: int) -> Rows:
    """The same choice at another step: random splits are drawn anew."""
    if isinstance(rows, Split):
        return replace(rows, key=at_step(rows.key, step))
    if isinstance(rows, Within):
        return Within(rows_at_step(rows.outer, step), rows_at_step(rows.inner, step))
    return rows


def positions(mask: Tensor, value: bool) -> Tensor:
    """The positions at which a boolean mask has this value, on the CPU."""
    if mask.dtype != torch.bool or mask.ndim != 1:
        raise TypeError(f"a mask over the batch is a 1-D bool tensor, not {mask.dtype} of shape {tuple(mask.shape)}")
    return torch.nonzero(mask.cpu() == value).flatten()
