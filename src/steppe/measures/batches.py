"""Data as a sequence of batches of any structure: their rows, their weights, and how a model is called with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from .session import preserved_rng

Batch = Any  # (inputs, targets), or whatever the objective's `forward` takes: tensors in lists, tuples or mappings
Weight = Callable[[Batch], float | Tensor] | float  # of a batch in a mean; a number: all batches weigh the same

LABELS = "labels"  # of a dictionary: the targets, as in Transformers
IGNORED = -100  # a label that losses leave out: `ignore_index` of torch's cross-entropy, and Transformers


def supervised(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """The output and the target of a batch (inputs, targets), or of a dictionary with `labels`: the default `forward`.

    A dictionary's other entries are arguments of the model, and the output is its logits, as in Transformers.
    """
    if isinstance(batch, Mapping) and LABELS in batch:
        return logits_of(model(**{k: v for k, v in batch.items() if k != LABELS})), batch[LABELS]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TypeError(
            f"a batch is a pair (inputs, targets) or a dictionary with {LABELS!r} unless forward= says how to use it; "
            f"this one is a {type(batch).__name__} of {len(batch)}: pass forward=lambda model, batch: (output, target)"
        )
    inputs, targets = batch
    return model(inputs), targets


def logits_of(output: Any) -> Any:
    """The logits of an output that has them, as those of Transformers have; any other output as it is."""
    logits = _entry(output, "logits")
    return output if logits is None else logits


def _entry(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def with_own_loss(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """The loss that a model returns for a dictionary, `model(**batch).loss`, and no target: for `loss_fn=None`."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"without loss_fn the loss is model(**batch).loss, and this batch is a {type(batch).__name__}, not a "
            "dictionary: pass loss_fn"
        )
    output = model(**batch)
    loss = _entry(output, "loss")
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"without loss_fn the loss is model(**batch).loss, and the model returned a {type(output).__name__} "
            f"without one: give the batches {LABELS!r}, or pass loss_fn"
        )
    return loss, None


def own_loss(output: Any, target: Any) -> Tensor:
    """The loss of a model that computes it itself: the output of `with_own_loss`."""
    return output  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TokenCount:
    """The number of labels in a batch that are not -100, with or without the first of each row."""

    first: bool

    def __call__(self, batch: Batch) -> Tensor:
        labels = labels_of(batch)
        return (labels if self.first or labels.ndim < 2 else labels[:, 1:]).ne(IGNORED).sum()


def labels_of(batch: Batch) -> Tensor:
    """The labels of a batch: its `labels`, or the second of a pair."""
    labels = batch.get(LABELS) if isinstance(batch, Mapping) else batch[1] if len(batch) == 2 else None
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"weight='tokens' counts labels, and a {type(batch).__name__} has no {LABELS!r}: pass a function"
        )
    return labels


def first_label_counts(batches: Sequence[Batch], loss: Callable[[Batch], float]) -> bool:
    """Whether the loss of a batch depends on the first label of a row."""
    for batch in batches:
        labels = labels_of(batch)
        if labels.ndim < 2 or not bool((labels[:, 0] != IGNORED).any() and (labels[:, 1:] != IGNORED).any()):
            continue  # both ways of counting agree, or the loss has nothing left
        without = labels.clone()
        without[:, 0] = IGNORED
        changed = {**batch, LABELS: without} if isinstance(batch, Mapping) else (batch[0], without)
        return loss(batch) != loss(changed)
    return True


def as_batches(data: Any, m: int | None = None) -> Sequence[Batch]:
    """The batches of `data`, regrouped into `m` rows each unless m is None.

    A tuple or mapping of tensors is one batch. A sequence of batches stays lazy. A DataLoader is read once, so that its
    shuffling and augmentation are drawn once and the loss is a function of the weights.
    """
    if is_batch(data):
        batches: Sequence[Batch] = [data]
    elif hasattr(data, "column_names"):
        raise TypeError(
            f"items of a {type(data).__module__.partition('.')[0]} {type(data).__name__} are rows, not batches: pass "
            "DataLoader(data.with_format('torch'), batch_size=64), with a collate_fn if rows have different lengths"
        )
    elif isinstance(data, Sequence):
        batches = data
    elif isinstance(data, Iterable):
        with preserved_rng():
            batches = list(data)
    else:
        raise TypeError(f"data is a tuple of tensors, a sequence of batches or a DataLoader, not {type(data).__name__}")
    return batches if m is None else list(_cut(batches, m))


def is_batch(data: Any) -> bool:
    """Whether this is one batch (a tensor, or a tuple or mapping of tensors) rather than several."""
    some = isinstance(data, tuple) and any(isinstance(x, Tensor) for x in data)
    return some or isinstance(data, (Mapping, Tensor))


def rows_of(batch: Batch) -> int:
    """The number of rows of a batch: the length of its first tensor that has a dimension."""
    for x in _leaves(batch):
        if _packed(x):
            return int(x.batch_sizes[0])
        if isinstance(x, Tensor) and x.ndim:
            if not x.shape[0]:
                raise ValueError("a batch is empty: drop it from the data")
            return x.shape[0]
    raise TypeError(f"a batch holds at least one tensor with one entry per row; this one is {type(batch).__name__}")


def batch_weight(batch: Batch, weight: Weight | None) -> float:
    """The weight of a batch in a mean: by default its number of rows."""
    if weight is None:
        return float(rows_of(batch))
    value = weight(batch) if callable(weight) else weight
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"weight= is a number, or a function that maps a batch to one, and gave a {type(value).__name__}"
        ) from error
    return usable_weight(number, "weight=")


def usable_weight(number: Tensor | float, what: str) -> float:
    """A weight as a number; raise ValueError unless it is finite, and 0 or more."""
    if not 0 <= float(number) < inf:
        raise ValueError(f"{what} is {float(number)} for a batch: it has to be finite, and 0 or more")
    return float(number)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    if _plain(batch) and not [x for x in batch if x.device != device]:
        return batch
    return _mapped(lambda x: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x, batch)


def row(batch: Batch, i: int) -> Batch:
    """One row of a batch, as a batch of one."""
    return take_rows(batch, slice(i, i + 1))


def take_rows(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch; entries without rows, such as numbers, stay."""
    n = rows_of(batch)
    return _mapped(lambda x: x[rows] if _has_rows(x, n) else x, batch)


def _plain(batch: Batch) -> bool:
    """Whether this is a tuple of tensors: the usual case, for which torch's walk through any structure takes long."""
    return type(batch) is tuple and not [x for x in batch if not isinstance(x, Tensor)]


def _leaves(batch: Batch) -> Iterator[Any]:
    if _plain(batch):
        yield from batch
        return
    for x in tree_leaves(batch, is_leaf=_packed):
        yield from _leaves(dict(x)) if isinstance(x, Mapping) else (x,)


def _packed(x: Any) -> bool:
    return isinstance(x, PackedSequence)


def _has_rows(x: Any, n: int) -> bool:
    return (x.ndim > 0 if isinstance(x, Tensor) else _listed(x)) and len(x) == n


def _listed(x: Any) -> bool:
    """Whether this is a list without tensors, such as names; it has one entry per row if it is as long as the batch."""
    return isinstance(x, list) and not any(isinstance(y, Tensor) for y in tree_leaves(x))


def _mapped(f: Any, *batches: Batch) -> Batch:
    """Apply `f` to every tensor and list of names, inside mappings of any class too."""
    if all(map(_plain, batches)):
        return tuple(map(f, *batches))

    def leaf(x: Any, *others: Any) -> Any:
        if isinstance(x, Mapping):
            return type(x)({k: _mapped(f, x[k], *(o[k] for o in others)) for k in x})  # type: ignore[call-arg]
        return f(x, *others)

    return tree_map(leaf, *batches, is_leaf=_listed)


def share(data: Any, group: Any = None, m: int | None = None) -> list[Batch]:
    """The share of this worker in batches that all workers have: every k-th batch for k workers.

    Parameters
    ----------
    data, m
        As `batches` and `m` of `Objective`.
    group
        The process group; None is the default one.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> data = torch.zeros(6, 2), torch.zeros(6)
    >>> [len(inputs) for inputs, _ in steppe.measures.share(data, m=2)]  # a single worker has all batches
    [2, 2, 2]
    >>> dist.destroy_process_group()

    """
    return list(as_batches(data, m))[dist.get_rank(group) :: dist.get_world_size(group)]


def _cut(batches: Sequence[Batch], m: int) -> Iterator[Batch]:
    if m < 1:
        raise ValueError(f"batches of m rows need m >= 1, not {m}")
    kept: Batch | None = None
    for batch in batches:
        rows_of(batch)
        kept = batch if kept is None else joined(kept, batch)
        while rows_of(kept) > m:
            yield take_rows(kept, slice(0, m))
            kept = take_rows(kept, slice(m, None))
    if kept is not None:
        yield kept


def joined(a: Batch, b: Batch) -> Batch:
    """The rows of two batches as one batch."""
    n = rows_of(a)

    def join(x: Any, y: Any) -> Any:
        if not _has_rows(x, n):
            return x
        return torch.cat([x, y]) if isinstance(x, Tensor) else x + y

    return _mapped(join, a, b)
