"""DTensors on one rank: the local shard, and reductions over the shards of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

Cut = tuple[int, int]  # a dimension of a device mesh, and the dimension of a tensor that it shards
Sharding = tuple[Any, tuple[Cut, ...]]  # a device mesh, and how it shards a tensor


def distributed(t: Tensor) -> Any:
    """`t` if it is a DTensor, else None; tested by an attribute because importing DTensor is slow."""
    return t if hasattr(t, "device_mesh") else None


def local(t: Tensor) -> Tensor:
    """The shard of `t` on this rank: `t` itself unless it is a DTensor."""
    dtensor = distributed(t)
    return t if dtensor is None else cast(Tensor, dtensor.to_local())


def local_gradient(g: Tensor, p: Tensor) -> Tensor:
    """The part of a gradient that belongs to the shard of `p` on this rank.

    With sequence parallelism each rank has the gradient of its own part of the sequence: the sum over ranks is needed.
    """
    dtensor, pattern = distributed(g), distributed(p)
    if dtensor is not None and pattern is not None and dtensor.placements != pattern.placements:
        return local(dtensor.redistribute(placements=pattern.placements))
    return local(g)


def shard_like(p: Tensor, x: Tensor) -> Tensor:
    """The DTensor with local shard `x` and the layout of `p`; `x` itself if `p` is not a DTensor."""
    pattern = distributed(p)
    if pattern is None:
        return x
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        x, pattern.device_mesh, pattern.placements, run_check=False, shape=p.shape, stride=p.stride()
    )


def sharding_of(p: Tensor) -> Sharding | None:
    """How `p` is sharded, or None if every rank has all of it."""
    dtensor = distributed(p)
    cuts = tuple((d, s.dim) for d, s in enumerate(dtensor.placements) if s.is_shard()) if dtensor is not None else ()
    return (dtensor.device_mesh, cuts) if cuts else None


def completed(part: Tensor, sharding: Sharding | None, op: Any = None, *, first_dim: int = 0) -> Tensor:
    """`part` reduced by `op`, the sum by default, over the ranks that shard dimension `first_dim` or a later one."""
    for mesh, mesh_dim, tensor_dim in [(sharding[0], *cut) for cut in sharding[1]] if sharding else ():
        if tensor_dim >= first_dim:
            dist.all_reduce(part, op=op or dist.ReduceOp.SUM, group=mesh.get_group(mesh_dim))
    return part


def over_ranks(
    numbers: Sequence[Tensor], shardings: Sequence[Sharding | None], combine: Callable[[Tensor], Tensor], op: Any
) -> Tensor:
    """Combines numbers, those of sharded tensors over all ranks that hold a shard."""
    totals = []
    for sharding in dict.fromkeys(shardings):
        mine = [n for n, s in zip(numbers, shardings, strict=True) if s == sharding]
        totals.append(completed(combine(torch.stack(mine)), sharding, op))
    return combine(torch.stack(totals))
