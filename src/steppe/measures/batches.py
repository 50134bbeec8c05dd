"""Data in the shapes that people have it: tensors, batches or a DataLoader, as one list of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Batch = Any  # (inputs, targets), or whatever the objective's `forward` takes: tensors in lists, tuples or mappings


def batches_of(data: Any, m: int | None = None) -> Sequence[Batch]:
    """The batches of `data`, cut anew to `m` rows each if m is given; what is no sequence is read once and kept.

    A tuple or mapping of tensors is one batch; a sequence of batches stays lazy; a DataLoader is read once, so that
    its shuffling and augmentation are drawn once and the loss is a function of the weights.
    """
    if is_batch(data):
        batches: Sequence[Batch] = [data]
    elif isinstance(data, Sequence):
        batches = data
    elif isinstance(data, Iterable):
        batches = list(data)
    else:
        raise TypeError(f"data is a tuple of tensors, a sequence of batches or a DataLoader, not {type(data).__name__}")
    if len(batches) == 0:
        raise ValueError("there is nothing to measure on: data has no batches")
    return batches if m is None else list(_cut(batches, m))


def is_batch(data: Any) -> bool:
    """Whether this is one batch (a tuple or mapping with tensors in it) rather than several."""
    if isinstance(data, Mapping):
        return True
    return isinstance(data, tuple) and any(isinstance(x, Tensor) for x in data)


def rows_of(batch: Batch) -> int:
    """How many rows a batch has: the length of its first tensor."""
    first = next((x for x in tree_leaves(batch) if isinstance(x, Tensor)), None)
    if first is None or not first.ndim:
        raise TypeError(f"a batch holds at least one tensor with one entry a row; this one is {type(batch).__name__}")
    if not len(first):
        raise ValueError("a batch is empty: drop it from the data")
    return len(first)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    return tree_map(lambda x: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x, batch)


def row(batch: Batch, i: int) -> Batch:
    """One row of a batch, as a batch of one."""
    return part(batch, slice(i, i + 1))


def part(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch; what has no rows, such as a number, stays."""
    n = rows_of(batch)
    return tree_map(lambda x: x[rows] if isinstance(x, Tensor) and x.ndim and len(x) == n else x, batch)


def share(data: Any, group: Any = None, m: int | None = None) -> list[Batch]:
    """The share of this worker in batches that all workers know: every k-th one."""
    return list(batches_of(data, m))[dist.get_rank(group) :: dist.get_world_size(group)]


def _cut(batches: Sequence[Batch], m: int) -> Iterator[Batch]:
    if m < 1:
        raise ValueError(f"batches of m rows need m >= 1, not {m}")
    kept: Batch | None = None
    for batch in batches:
        kept = batch if kept is None else _joined(kept, batch)
        while rows_of(kept) > m:
            yield part(kept, slice(0, m))
            kept = part(kept, slice(m, None))
    if kept is not None:
        yield kept


def _joined(a: Batch, b: Batch) -> Batch:
    n = rows_of(a)

    def join(x: Any, y: Any) -> Any:
        return torch.cat([x, y]) if isinstance(x, Tensor) and x.ndim and len(x) == n else x

    return tree_map(join, a, b)
