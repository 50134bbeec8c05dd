"""Steps shared by several workers: when gradients are averaged, and whose memory they are in."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ..core.shards import distributed
from ..core.vector import Vector


class Replicas:
    """The workers that share a step: one process, DistributedDataParallel, or FSDP2 (`fully_shard`).

    Attributes
    ----------
    alone
        Whether there are no other workers.
    sharded
        Whether FSDP2 shards the parameters.
    recycles_gradients
        Whether the next backward pass may overwrite the gradients of this one (DDP's bucket views).

    """

    def __init__(self, model: nn.Module | None, params: Sequence[Tensor]):
        self._modules: list[Any] = list(model.modules()) if model is not None else []
        flat = any(getattr(p, "_fsdp_flattened", False) for p in params)  # without model= too
        if flat or any(type(m).__name__ == "FullyShardedDataParallel" for m in self._modules):
            raise TypeError(
                "FSDP1's flat shards do not say what they are shards of: use torch.distributed.fsdp.fully_shard"
            )
        self._ddp: Any = model if hasattr(model, "no_sync") else None
        running = dist.is_available() and dist.is_initialized()
        meshes = [dtensor.device_mesh for p in params if (dtensor := distributed(p)) is not None]
        self._groups: list[Any] = [meshes[0].get_group(d) for d in range(meshes[0].ndim)] if meshes else []
        unwrapped = running and self._ddp is None and not meshes
        self._unknown = unwrapped and dist.get_world_size() > 1
        self._wrappers = [self._ddp] if self._ddp is not None else wrappers_of(params) if self._unknown else []
        if running and self._wrappers:
            groups = [getattr(w, "process_group", None) for w in self._wrappers]
            self._groups = list({id(g): g for g in groups}.values())
        self.sharded = bool(meshes)
        self._gathering = [m for m in self._modules if hasattr(m, "reshard")] if meshes else []
        self.alone = not self._groups and not self._unknown
        self.recycles_gradients = unwrapped or bool(getattr(self._ddp, "gradient_as_bucket_view", False))

    def run_pass(self, sync: bool, grad: bool) -> AbstractContextManager[Any]:
        """The context of one forward and backward pass; without `sync`, gradients are not averaged over workers."""
        if getattr(getattr(self._ddp, "_join_config", None), "enable", False):
            # Join shadows DDP's own all-reduces; a step has others, for means and checks
            raise RuntimeError(
                "torch's Join stands in for workers without data in plain steps only: give all workers the same "
                "number of batches (drop_last=True). After its block, model.join(enable=False) turns Join off"
            )
        if self.sharded and not grad and not self._gathering:
            raise RuntimeError(
                "a forward pass without a backward pass leaves FSDP2's weights gathered: pass model=, so that they are "
                "resharded"
            )
        if sync or not grad:
            return nullcontext()
        if self.sharded:
            raise RuntimeError(
                "the method needs each worker's own gradient, and FSDP2 keeps none: without its reduction a shard has "
                "no gradient. Use a method whose probes are averaged (sam instead of PerWorker), or DDP."
            )
        if self._unknown:
            raise self._unreachable("each worker's own gradient")
        if getattr(self._ddp, "static_graph", False) and not self._ddp._static_graph_delay_allreduce_enqueued:
            raise RuntimeError(
                "the method needs each worker's own gradient, and DistributedDataParallel(static_graph=True) averages "
                "the first one: wrap the model without static_graph"
            )
        return self._ddp.no_sync() if self._ddp is not None else nullcontext()

    def mean(self, numbers: Tensor) -> Tensor:
        """The mean of numbers over the workers."""
        if self._unknown:
            raise self._unreachable("losses or numbers of rows averaged over workers")
        return self.agreed(numbers)

    def agreed(self, numbers: Tensor) -> Tensor:
        """The mean of numbers over the workers that are known, if there are any."""
        for group in self._groups:
            numbers = numbers.clone()
            dist.all_reduce(numbers, group=group)
            numbers /= dist.get_world_size(group)
        return numbers

    def average_(self, vector: Vector) -> Vector:
        """Averages a vector that each worker computed for itself, in place."""
        if self._unknown:
            raise self._unreachable("vectors averaged over workers")
        for group in self._groups if self._ddp is not None else ():
            size = dist.get_world_size(group)
            for chunk in vector.mul_(1 / size).chunks:
                dist.all_reduce(chunk, group=group)
        return vector

    def check_synchronized(self) -> None:
        """Raises inside DDP's `no_sync`: what accumulates there would never be averaged."""
        if not all(getattr(w, "require_backward_grad_sync", True) for w in self._wrappers):
            raise RuntimeError(
                "passes(accumulate=True) inside no_sync() (Accelerate's accumulate() enters it) leaves gradients that "
                "DDP never averages: leave no_sync() out, or run every micro-batch in each pass"
            )

    def reshard(self) -> None:
        """Frees the weights that FSDP2 keeps gathered: call it before and after the shards move."""
        for module in self._gathering:
            module.reshard()

    def recover(self) -> None:
        """After a pass that did not end: puts FSDP2 back to the start of an iteration."""
        if not self._gathering:
            return
        root = self._modules[0]
        for p in root.parameters():  # gathered ones too: their gradients would be added to the next pass's
            p.grad = None
        if hasattr(root, "reset_iter_state") and root._get_fsdp_state()._is_root:
            root.reset_iter_state()
        self.reshard()

    def _unreachable(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"the method needs {what}, torch.distributed is running, and the wrapper of the model is not known: "
            "pass the wrapped model, SharpnessAware(..., model=ddp_model)."
        )


def wrappers_of(params: Sequence[Tensor]) -> list[Any]:
    """The DistributedDataParallel wrappers in this process that average gradients of these parameters."""
    ours = set(map(id, params))
    wrappers = [x for x in gc.get_objects() if issubclass(type(x), nn.parallel.DistributedDataParallel)]
    return [w for w in wrappers if not ours.isdisjoint(map(id, w.parameters()))]
