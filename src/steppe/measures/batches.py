"""Data in the shapes that people have it: tensors, batches or a DataLoader, as one list of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from .elsewhere import random_numbers_kept

Batch = Any  # (inputs, targets), or whatever the objective's `forward` takes: tensors in lists, tuples or mappings
Weight = Callable[[Batch], float | Tensor] | float  # of a batch among others; a number: all weigh the same


def supervised(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """The output and the target of a batch (inputs, targets): what an objective does unless told otherwise."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TypeError(
            f"a batch is a pair (inputs, targets) unless forward= says how to use it; this one is a "
            f"{type(batch).__name__} of {len(batch)}: pass forward=lambda model, batch: (output, target)"
        )
    inputs, targets = batch
    return model(inputs), targets


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
        with random_numbers_kept():
            batches = list(data)
    else:
        raise TypeError(f"data is a tuple of tensors, a sequence of batches or a DataLoader, not {type(data).__name__}")
    return batches if m is None else list(_cut(batches, m))


def is_batch(data: Any) -> bool:
    """Whether this is one batch (a tuple or mapping with tensors in it) rather than several."""
    if isinstance(data, (Mapping, Tensor)):
        return True
    return isinstance(data, tuple) and any(isinstance(x, Tensor) for x in data)


def rows_of(batch: Batch) -> int:
    """How many rows a batch has: the length of its first tensor that has one."""
    for x in _leaves(batch):
        if _packed(x):
            return int(x.batch_sizes[0])
        if isinstance(x, Tensor) and x.ndim:
            if not len(x):
                raise ValueError("a batch is empty: drop it from the data")
            return len(x)
    raise TypeError(f"a batch holds at least one tensor with one entry a row; this one is {type(batch).__name__}")


def weight_of(batch: Batch, weight: Weight | None) -> float:
    """What a batch counts among others: by default its rows."""
    if weight is None:
        return float(rows_of(batch))
    value = weight(batch) if callable(weight) else weight
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"weight= is a number, or a function that maps a batch to one, and gave a {type(value).__name__}"
        ) from error
    if not 0 <= number < inf:
        raise ValueError(f"weight= is {number} for a batch: it has to be finite, and 0 or more")
    return number


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    return _mapped(lambda x: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x, batch)


def row(batch: Batch, i: int) -> Batch:
    """One row of a batch, as a batch of one."""
    return part(batch, slice(i, i + 1))


def part(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch; what has no rows, such as a number, stays."""
    n = rows_of(batch)
    return _mapped(lambda x: x[rows] if _has_rows(x, n) else x, batch)


def _leaves(batch: Batch) -> Iterator[Any]:
    for x in tree_leaves(batch, is_leaf=_packed):
        yield from _leaves(dict(x)) if isinstance(x, Mapping) else (x,)


def _packed(x: Any) -> bool:
    return isinstance(x, PackedSequence)


def _has_rows(x: Any, n: int) -> bool:
    if isinstance(x, Tensor):
        return x.ndim > 0 and len(x) == n
    return _listed(x) and len(x) == n


def _listed(x: Any) -> bool:
    """A list of things that are no tensors, such as names: one a row if it is as long as the batch."""
    return isinstance(x, list) and not any(isinstance(y, Tensor) for y in tree_leaves(x))


def _mapped(f: Any, *batches: Batch) -> Batch:
    """`f` of every tensor and list of names, through mappings of any class too."""

    def leaf(x: Any, *others: Any) -> Any:
        if isinstance(x, Mapping):
            return type(x)({k: _mapped(f, x[k], *(o[k] for o in others)) for k in x})  # type: ignore[call-arg]
        return f(x, *others)

    return tree_map(leaf, *batches, is_leaf=_listed)


def share(data: Any, group: Any = None, m: int | None = None) -> list[Batch]:
    """The share of this worker in batches that all workers know: every k-th one."""
    return list(batches_of(data, m))[dist.get_rank(group) :: dist.get_world_size(group)]


def _cut(batches: Sequence[Batch], m: int) -> Iterator[Batch]:
    if m < 1:
        raise ValueError(f"batches of m rows need m >= 1, not {m}")
    kept: Batch | None = None
    for batch in batches:
        rows_of(batch)
        kept = batch if kept is None else _joined(kept, batch)
        while rows_of(kept) > m:
            yield part(kept, slice(0, m))
            kept = part(kept, slice(m, None))
    if kept is not None:
        yield kept


def _joined(a: Batch, b: Batch) -> Batch:
    n = rows_of(a)

    def join(x: Any, y: Any) -> Any:
        if not _has_rows(x, n):
            return x
        return torch.cat([x, y]) if isinstance(x, Tensor) else x + y

    return _mapped(join, a, b)
