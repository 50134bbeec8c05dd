"""One run on several processes: who takes part, how the model is shared, and what all of them agree on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.process_group import Workers
from ..core.shards import distributed

R = TypeVar("R")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def device_of(name: str | None) -> torch.device:
    """The device asked for, or a GPU where there is one; each process of a machine has its own."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())))
    return device


@contextmanager
def joined(device: torch.device, fsdp: bool) -> Iterator[Workers]:
    """The processes that torchrun started, or those of a group that is there already, or this one alone."""
    if dist.is_initialized():
        yield Workers(dist.group.WORLD)
        return
    if "RANK" not in os.environ or (int(os.environ.get("WORLD_SIZE", "1")) == 1 and not fsdp):
        if fsdp:
            raise ValueError("fsdp shards a model over processes: start them with torchrun --nproc-per-node N")
        yield Workers()
        return
    if os.environ.get("MASTER_ADDR") in LOOPBACK and os.path.exists("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # processes of one machine need no other address
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Workers(dist.group.WORLD)
        dist.barrier()  # gloo may abort if a worker leaves while another still talks
    finally:
        dist.destroy_process_group()


def together(workers: Workers, task: Callable[[], R]) -> R:
    """What `task()` returns on this worker; raises on all of them if it fails on one."""
    trouble: Exception | None = None
    try:
        value = task()
    except Exception as error:
        trouble = error
    workers.raise_on_all(trouble)
    return value


def wrapped(model: nn.Module, workers: Workers, device: torch.device, fsdp: bool) -> nn.Module:
    """The model as processes share it: sharded as one unit (FSDP2), copied (DDP), or as it is."""
    if fsdp:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh(device.type, (workers.count,)))
        return model
    if workers.count > 1:
        return nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    return model


def align_(workers: Workers, model: nn.Module) -> None:
    """Gives all workers the first one's buffers: each has seen other rows, and the first one's are kept."""
    if workers.group is not None:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0, group=workers.group)


def agreed(workers: Workers, *wishes: bool) -> list[bool]:
    """Which of the wishes any worker has."""
    if workers.group is None:
        return list(wishes)
    device = "cuda" if dist.get_backend(workers.group) == "nccl" else "cpu"
    return [n > 0 for n in workers.all_reduce(torch.tensor([float(w) for w in wishes], device=device)).tolist()]


def gathered(tree: Any) -> Any:
    """The same tree with whole tensors in place of shards; every worker takes part."""
    if isinstance(tree, Tensor):
        shards = distributed(tree)
        return tree if shards is None else shards.full_tensor()
    if isinstance(tree, Mapping):
        return {k: gathered(v) for k, v in tree.items()}
    return type(tree)(gathered(v) for v in tree) if isinstance(tree, (list, tuple)) else tree


def placed(t: Tensor, like: Tensor) -> Tensor:
    """A whole tensor cut up as another one is; every worker takes part."""
    pattern = distributed(like)
    if pattern is None or t.shape != like.shape:
        return t
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(t.to(like.device), pattern.device_mesh, pattern.placements)
