"""What the model's distributed wrapper asks of a step: when to average, and what memory is not ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ..vector import Vector


class Replicas:
    """The workers that share a step: one process, DistributedDataParallel, or FSDP2 (`fully_shard`)."""

    def __init__(self, model: nn.Module | None, params: Sequence[Tensor]):
        self._modules: list[Any] = list(model.modules()) if model is not None else []
        self._ddp: Any = model if hasattr(model, "no_sync") else None
        meshes = [m for p in params if (m := getattr(p, "device_mesh", None)) is not None]
        self._groups: list[Any] = [meshes[0].get_group(d) for d in range(meshes[0].ndim)] if meshes else []
        if self._ddp is not None and dist.is_initialized():
            self._groups = [getattr(self._ddp, "process_group", None)]
        self._sharded = bool(meshes)
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._unknown = several and not self._groups

    @property
    def known(self) -> bool:
        """Whether there are other workers, and we can reach them."""
        return bool(self._groups)

    @property
    def recycles_gradients(self) -> bool:
        """Whether the next backward pass may write into the gradients of this one (DDP's bucket views)."""
        return self._unknown or bool(getattr(self._ddp, "gradient_as_bucket_view", False))

    def passing(self, sync: bool) -> AbstractContextManager[Any]:
        """Surrounds one pass, its forward too: without `sync`, gradients stay this worker's own."""
        if sync:
            return nullcontext()
        if self._sharded:
            raise RuntimeError(
                "the method wants each worker's own gradient, and FSDP2 keeps none: without its reduction a shard has "
                "no gradient. Use a method whose probes are averaged (sam instead of PerWorker), or DDP."
            )
        if self._unknown:
            raise self._unreachable("each worker's own gradient")
        return self._ddp.no_sync() if self._ddp is not None else nullcontext()

    def mean(self, number: Tensor) -> Tensor:
        """The mean of a number over the workers."""
        if self._unknown:
            raise self._unreachable("the loss averaged over workers")
        for group in self._groups:
            number = number.clone()
            dist.all_reduce(number, group=group)
            number /= dist.get_world_size(group)
        return number

    def average_(self, vector: Vector) -> Vector:
        """The mean of a vector that each worker computed for itself."""
        if self._unknown:
            raise self._unreachable("vectors averaged over workers")
        for group in self._groups if self._ddp is not None else ():
            size = dist.get_world_size(group)
            for chunk in vector.mul_(1 / size).chunks:
                dist.all_reduce(chunk, group=group)
        return vector

    @contextmanager
    def without_backward(self) -> Iterator[None]:
        """Surrounds a pass that ends with its forward: FSDP2 must let go of the weights it gathered."""
        yield
        for module in self._modules if self._sharded else ():
            if hasattr(module, "reshard"):
                module.reshard()

    def _unreachable(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"the method needs {what}, torch.distributed is running, and nobody said how the model is wrapped: "
            "pass the wrapped model, SharpnessAware(..., model=ddp_model)."
        )
