"""Which rows of the batch a probe is taken on. Calling a value here selects them from tensors of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .draw import permutation
from .graph_inputs import from_host, replaying


class Rows(Protocol):
    """A choice of rows, known before the batch is seen."""

    def index(self, n: int) -> Tensor | slice:
        """The chosen rows of a batch of n."""
        ...


@dataclass(frozen=True)
class Whole:
    """Every row of the batch."""

    def index(self, n: int) -> slice:
        return slice(None)


@dataclass(frozen=True)
class HeldOut:
    """Not this batch at all: the caller's held-out data, all of it."""

    def index(self, n: int) -> slice:
        return slice(None)


@dataclass(frozen=True)
class Part:
    """The `number`-th of `of` parts, as equal as they can be."""

    number: int
    of: int

    def index(self, n: int) -> slice:
        if n < self.of:
            raise ValueError(
                f"asked for {self.of} parts of a batch of {n} rows: use fewer parts, or drop short batches"
            )
        small, extra = divmod(n, self.of)
        start = self.number * small + min(self.number, extra)
        return slice(start, start + self.size(n))

    def size(self, n: int) -> int:
        """How many rows this part of a batch of n has."""
        return n // self.of + (self.number < n % self.of)


@dataclass(frozen=True)
class Row:
    """A single row."""

    number: int

    def index(self, n: int) -> slice:
        if self.number >= n:
            raise ValueError(
                f"asked for row {self.number} by itself, but the batch has {n} rows: ask for fewer samples"
            )
        return slice(self.number, self.number + 1)


@dataclass(frozen=True)
class Split:
    """A random share of the rows, or, with `rest`, the other rows of the same split."""

    share: float
    key: tuple[int, ...]
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
class Chosen:
    """The rows at these positions of a batch of `of` rows."""

    positions: Tensor
    of: int

    def index(self, n: int) -> Tensor:
        if n != self.of:
            raise ValueError(f"rows were chosen for a batch of {self.of}, but this batch has {n} rows")
        return self.positions


@dataclass(frozen=True)
class Within:
    """Some rows of a choice of rows."""

    outer: Rows
    inner: Rows

    def index(self, n: int) -> Tensor:
        outer = torch.arange(n)[self.outer.index(n)]
        return outer[self.inner.index(len(outer))]


whole = Whole()
held_out = HeldOut()


def within(outer: Rows, inner: Rows) -> Rows:
    """`inner` of the rows that `outer` chooses; held-out data stays what it is."""
    return inner if inner is held_out else outer if inner is whole else Within(outer, inner)


def count(rows: Rows, n: int) -> int:
    """How many rows are chosen of a batch of n."""
    index = rows.index(n)
    return len(range(n)[index]) if isinstance(index, slice) else len(index)


def select(rows: Rows, tensors: tuple[Any, ...]) -> tuple[Any, int]:
    """The chosen rows of every tensor, and how many the batch has; one tensor in, one tensor out."""
    if not tensors:
        raise TypeError("rows(...) takes the tensors of the batch: x, y = turn.rows(x, y)")
    lengths = {len(t) for t in tensors}
    if len(lengths) > 1:
        raise ValueError(f"the tensors of one batch have one length, not {sorted(lengths)}")
    n = lengths.pop()
    if n == 0:
        raise ValueError("the batch is empty: there is no loss to take a gradient of")
    index = rows.index(n)
    there = {device: _on(device, rows, index, n) for device in {t.device for t in tensors}}
    picked = tuple(t[there[t.device]] for t in tensors)
    return (picked[0] if len(picked) == 1 else picked), n


def _on(device: torch.device, rows: Rows, index: Tensor | slice, n: int) -> Tensor | slice:
    if not isinstance(index, Tensor) or index.device.type != "cpu":  # chosen on the device
        return index

    def fill(memory: Tensor) -> None:
        chosen = rows.index(n) if replaying() else index
        memory.copy_(torch.as_tensor(chosen), non_blocking=True)

    return from_host(lambda: torch.empty(index.shape, dtype=index.dtype, device=device), fill)


def positions(mask: Tensor, value: bool) -> Tensor:
    """Where a boolean mask has that value, on the CPU so that no step waits for the device."""
    if mask.dtype != torch.bool or mask.ndim != 1:
        raise TypeError(f"a mask over the batch is a 1-D bool tensor, not {mask.dtype} of shape {tuple(mask.shape)}")
    return torch.nonzero(mask.cpu() == value).flatten()
