"""The device, threads and processes of a run: joining a process group, wrapping the model, and agreeing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.process_group import Workers, keep_gloo
from ..core.shards import distributed

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def device_of(name: str | None) -> torch.device:
    """Return the named device; by default a GPU where there is one, another for each process of a machine."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
    return device


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of torch threads for a block; None leaves it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def joined(device: torch.device, fsdp: bool) -> Iterator[Workers]:
    """Yield the workers: torchrun's processes, those of an initialised group, or this process alone."""
    if dist.is_initialized():
        yield Workers(dist.group.WORLD)
        return
    if "RANK" not in os.environ or (int(os.environ.get("WORLD_SIZE", "1")) == 1 and not fsdp):
        if fsdp:
            raise ValueError("fsdp shards a model over processes: start them with torchrun --nproc-per-node N")
        yield Workers()
        return
    if os.environ.get("MASTER_ADDR") in LOOPBACK and os.path.exists("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # processes of one machine stay on the loopback interface
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if device.type != "cuda":
        keep_gloo(dist.group.WORLD)
    try:
        yield Workers(dist.group.WORLD)
        dist.barrier()  # gloo may abort if a worker leaves while another still communicates
    finally:
        dist.destroy_process_group()


def wrapped(model: nn.Module, workers: Workers, device: torch.device, fsdp: bool) -> nn.Module:
    """Wrap the model: FSDP2 as one unit, DDP with several processes, else unchanged."""
    if fsdp:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh(device.type, (workers.count,)))
        return model
    if workers.count > 1:
        return nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    return model


def align_(workers: Workers, model: nn.Module) -> None:
    """Broadcast the first worker's buffers: running statistics differ because each worker has other rows."""
    if workers.group is not None:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0, group=workers.group)


def agreed(workers: Workers, *flags: bool) -> list[bool]:
    """Return for each flag whether it is set on any worker."""
    if workers.group is None:
        return list(flags)
    device = "cuda" if dist.get_backend(workers.group) == "nccl" else "cpu"
    return [n > 0 for n in workers.all_reduce(torch.tensor([float(w) for w in flags], device=device)).tolist()]


def gathered(tree: Any) -> Any:
    """Return a tree with full tensors instead of shards; every worker takes part."""
    if isinstance(tree, Tensor):
        shards = distributed(tree)
        return tree if shards is None else shards.full_tensor()
    if isinstance(tree, Mapping):
        return {k: gathered(v) for k, v in tree.items()}
    return type(tree)(gathered(v) for v in tree) if isinstance(tree, (list, tuple)) else tree


def placed(t: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like another one; every worker takes part."""
    pattern = distributed(like)
    if pattern is None or t.shape != like.shape:
        return t
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(t.to(like.device), pattern.device_mesh, pattern.placements)
