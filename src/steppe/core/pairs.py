"""Inner products of pairs of tensors, with few kernels where the tensors are small."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

STACK_BELOW = 1 << 14  # elements: copying a larger tensor costs more than one more kernel launch

Pair = tuple[Tensor, Tensor]


def dot(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The inner product, accumulated in `dtype`; copies nothing where both have the same memory format."""
    if x.ndim == 4 and x.stride() == y.stride() and x.is_contiguous(memory_format=torch.channels_last):
        x, y = x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1)
    return torch.dot(x.reshape(-1).to(dtype), y.reshape(-1).to(dtype))


def joined(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs, the small ones of one kind concatenated: one kernel each would cost more."""
    kinds: dict[Hashable, list[Pair]] = {}
    for x, y in pairs:
        if x.numel() <= STACK_BELOW:
            kinds.setdefault((x.device, x.dtype, y.dtype), []).append((x.reshape(-1), y.reshape(-1)))
    small = [(torch.cat([x for x, _ in alike]), torch.cat([y for _, y in alike])) for alike in kinds.values()]
    return [(x, y) for x, y in pairs if x.numel() > STACK_BELOW] + small


def alike(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors, grouped by device and dtype."""
    groups: dict[Hashable, list[Tensor]] = {}
    for x in tensors:
        groups.setdefault((x.get_device(), x.dtype), []).append(x)  # hashing `x.device` takes longer
    return list(groups.values())
