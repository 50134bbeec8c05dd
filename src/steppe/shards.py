"""DTensors seen from one rank: its own shard, and what the shards of all ranks add up to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

Sharding = tuple[Any, tuple[int, ...]]  # a device mesh, and the mesh dimensions that a tensor is cut along


def local(t: Tensor) -> Tensor:
    """This rank's shard of `t`: `t` itself unless it is a DTensor."""
    return t.to_local() if hasattr(t, "to_local") else t  # type: ignore[no-any-return]


def shard_like(p: Tensor, x: Tensor) -> Tensor:
    """`x`, this rank's shard, as a tensor distributed the way `p` is."""
    if not hasattr(p, "to_local"):
        return x
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(x, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def sharding_of(p: Tensor) -> Sharding | None:
    """How `p` is cut up, or None if every rank has all of it."""
    mesh = getattr(p, "device_mesh", None)
    dims = tuple(d for d, s in enumerate(p.placements) if s.is_shard()) if mesh is not None else ()  # type: ignore[attr-defined]
    return (mesh, dims) if dims else None
