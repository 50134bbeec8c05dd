"""DTensors seen from one rank: its own shard, and what the shards of all ranks add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

Sharding = tuple[Any, tuple[int, ...]]  # a device mesh, and the mesh dimensions that a tensor is cut along


def distributed(t: Tensor) -> Any:
    """`t` as the DTensor that it is, or None; asked by attribute because importing DTensor is slow."""
    return t if hasattr(t, "device_mesh") else None


def local(t: Tensor) -> Tensor:
    """The shard of `t` on this rank: `t` itself unless it is a DTensor."""
    whole = distributed(t)
    return t if whole is None else cast(Tensor, whole.to_local())


def shard_like(p: Tensor, x: Tensor) -> Tensor:
    """`x`, a shard on this rank, as a tensor distributed the way `p` is."""
    pattern = distributed(p)
    if pattern is None:
        return x
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        x, pattern.device_mesh, pattern.placements, run_check=False, shape=p.shape, stride=p.stride()
    )


def sharding_of(p: Tensor) -> Sharding | None:
    """How `p` is cut up, or None if every rank has all of it."""
    whole = distributed(p)
    dims = tuple(d for d, s in enumerate(whole.placements) if s.is_shard()) if whole is not None else ()
    return (whole.device_mesh, dims) if dims else None


def over_ranks(
    numbers: Sequence[Tensor], shardings: Sequence[Sharding | None], combine: Callable[[Tensor], Tensor], op: Any
) -> Tensor:
    """`combine` of numbers of which some are this rank's part only, those completed by the other ranks."""
    totals = []
    for sharding in dict.fromkeys(shardings):
        total = combine(torch.stack([n for n, s in zip(numbers, shardings, strict=True) if s == sharding]))
        if sharding is not None:
            mesh, dims = sharding
            for d in dims:
                dist.all_reduce(total, op=op, group=mesh.get_group(d))
        totals.append(total)
    return combine(torch.stack(totals))
