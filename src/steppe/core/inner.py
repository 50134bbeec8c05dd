"""Inner products of pairs of tensors, in as few operations as they allow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def dot(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The inner product, added up in a type; nothing is copied where both lie in memory in the same order."""
    if x.ndim == 4 and x.stride() == y.stride() and x.is_contiguous(memory_format=torch.channels_last):
        x, y = x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1)
    return torch.dot(x.reshape(-1).to(dtype), y.reshape(-1).to(dtype))


def joined(pairs: Sequence[Pair], small: int) -> list[Pair]:
    """The same pairs, those of few entries and one kind end to end: an operation on each would cost more than that."""
    kinds: dict[Hashable, list[Pair]] = {}
    for x, y in pairs:
        if x.numel() <= small:
            kinds.setdefault((x.device, x.dtype, y.dtype), []).append((x.reshape(-1), y.reshape(-1)))
    few = [(torch.cat([x for x, _ in alike]), torch.cat([y for _, y in alike])) for alike in kinds.values()]
    return [(x, y) for x, y in pairs if x.numel() > small] + few
