"""What the model's distributed wrapper asks of a step: when to average, and what memory is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.shards import distributed
from ..core.vector import Vector


class Replicas:
    """The workers that share a step: one process, DistributedDataParallel, or FSDP2 (`fully_shard`)."""

    def __init__(self, model: nn.Module | None, params: Sequence[Tensor]):
        self._modules: list[Any] = list(model.modules()) if model is not None else []
        if any(type(m).__name__ == "FullyShardedDataParallel" for m in self._modules):
            raise TypeError(
                "FSDP1's flat shards do not say what they are shards of: use torch.distributed.fsdp.fully_shard"
            )
        self._ddp: Any = model if hasattr(model, "no_sync") else None
        meshes = [whole.device_mesh for p in params if (whole := distributed(p)) is not None]
        self._groups: list[Any] = [meshes[0].get_group(d) for d in range(meshes[0].ndim)] if meshes else []
        if self._ddp is not None and dist.is_initialized():
            self._groups = [getattr(self._ddp, "process_group", None)]
        self._sharded = bool(meshes)
        self._gathering = [m for m in self._modules if hasattr(m, "reshard")] if meshes else []
        running = dist.is_available() and dist.is_initialized()
        self._unseen = running and self._ddp is None and not meshes
        self._unknown = self._unseen and dist.get_world_size() > 1

    @property
    def known(self) -> bool:
        """Whether there are other workers, and we can reach them."""
        return bool(self._groups)

    @property
    def alone(self) -> bool:
        """Whether there are no other workers, known or not."""
        return not self._groups and not self._unknown

    def refuse_join(self) -> None:
        """Join stands in for a worker without data in DDP's own exchanges, and a step has others: means and checks."""
        if getattr(getattr(self._ddp, "_join_config", None), "enable", False):
            raise RuntimeError(
                "a sharpness-aware step was asked for under torch's Join, which stands in for a worker without data in "
                "plain steps only: give all workers the same number of batches (drop_last=True). torch leaves Join on "
                "when its block ends: model.join(enable=False) turns it off"
            )

    @property
    def recycles_gradients(self) -> bool:
        """Whether the next backward pass may write into the gradients of this one (DDP's bucket views)."""
        return self._unseen or bool(getattr(self._ddp, "gradient_as_bucket_view", False))

    def passing(self, sync: bool, grad: bool) -> AbstractContextManager[Any]:
        """Surrounds one pass, its forward too: without `sync`, gradients stay this worker's own."""
        if self._sharded and not grad and not self._gathering:
            raise RuntimeError(
                "a forward pass alone leaves FSDP2's weights gathered: pass model= so that they are let go"
            )
        if not grad:
            return torch.no_grad()  # and DDP does not wait for a backward
        if sync:
            return nullcontext()
        if self._sharded:
            raise RuntimeError(
                "the method wants each worker's own gradient, and FSDP2 keeps none: without its reduction a shard has "
                "no gradient. Use a method whose probes are averaged (sam instead of PerWorker), or DDP."
            )
        if self._unknown:
            raise self._unreachable("each worker's own gradient")
        if getattr(self._ddp, "static_graph", False) and not self._ddp._static_graph_delay_allreduce_enqueued:
            raise RuntimeError(
                "the method wants each worker's own gradient, as SharpBalance with its mask and PerWorker do, and "
                "DistributedDataParallel(static_graph=True) has to average the first gradient that it sees: wrap the "
                "model without static_graph"
            )
        return self._ddp.no_sync() if self._ddp is not None else nullcontext()

    def mean(self, numbers: Tensor) -> Tensor:
        """The mean of numbers over the workers."""
        if self._unknown:
            raise self._unreachable("losses or numbers of rows averaged over workers")
        for group in self._groups:
            numbers = numbers.clone()
            dist.all_reduce(numbers, group=group)
            numbers /= dist.get_world_size(group)
        return numbers

    def average_(self, vector: Vector) -> Vector:
        """The mean of a vector that each worker computed for itself."""
        if self._unknown:
            raise self._unreachable("vectors averaged over workers")
        for group in self._groups if self._ddp is not None else ():
            size = dist.get_world_size(group)
            for chunk in vector.mul_(1 / size).chunks:
                dist.all_reduce(chunk, group=group)
        return vector

    def let_go(self) -> None:
        """Frees the weights that FSDP2 keeps gathered: their shards are about to move, or have moved."""
        for module in self._gathering:
            module.reshard()

    def recover(self) -> None:
        """After a pass that did not end: FSDP2 goes back to the start of an iteration."""
        if not self._gathering:
            return
        root = self._modules[0]
        for p in root.parameters():  # gathered ones too: their gradients would be added to the next pass's
            p.grad = None
        if hasattr(root, "reset_iter_state") and root._get_fsdp_state()._is_root:
            root.reset_iter_state()
        self.let_go()

    def _unreachable(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"the method needs {what}, torch.distributed is running, and nobody said how the model is wrapped: "
            "pass the wrapped model, SharpnessAware(..., model=ddp_model)."
        )
