"""Sums, gathered numbers and shared errors over the workers of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor

from .vector import Vector, by_device_and_dtype

R = TypeVar("R")
Rows = list[tuple[int, list[float]]]  # numbered rows of numbers


def keep_gloo(group: Any) -> None:
    """Let the gloo backend of a process group outlive the group.

    torch 2.6 holds the GIL while it destroys a group and waits for the backend's threads, which hang if they need the
    GIL to free a tensor. It releases the GIL for a backend that is destroyed after its group.
    """
    finalize(group, lambda backend: None, group._get_backend(torch.device("cpu")))


@dataclass(frozen=True)
class Workers:
    """The members of a process group; without a group, this process alone."""

    group: Any = None

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group) if self.group is not None else 0

    @property
    def count(self) -> int:
        return dist.get_world_size(self.group) if self.group is not None else 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the workers, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_reduce_vector(self, vector: Vector) -> Vector:
        """The sum of a vector over the workers, with one message per device and dtype."""
        if self.group is None:
            return vector
        chunks = [x.clone() for x in vector.chunks]
        for same in by_device_and_dtype(chunks):
            message = self.all_reduce(torch.cat([x.reshape(-1) for x in same]))
            for x, summed in zip(same, torch.split(message, [x.numel() for x in same]), strict=True):
                x.copy_(summed.view_as(x))
        return Vector(vector.space, chunks)

    def all_gather(self, rows: Sequence[tuple[int, list[float]]]) -> Rows:
        """The numbered rows of all workers, sorted by their numbers."""
        if self.group is None:
            return sorted(rows)
        return sorted(row for rows in self._of_each(list(rows)) for row in rows)

    def _of_each(self, mine: Any) -> list[Any]:
        """What every worker passes, by rank."""
        per_worker: list[Any] = [None] * self.count
        dist.all_gather_object(per_worker, mine, group=self.group)
        return per_worker

    def together(self, task: Callable[[], R]) -> R:
        """The result of a task; raise on every worker the error of any of them, or the others wait for that one."""
        if self.group is None:
            return task()
        error: Exception | None = None
        try:
            result = task()
        except Exception as raised:
            error = raised
        per_worker = self._of_each(error and (type(error), str(error)))
        if error is not None:
            raise error
        for rank, remote in enumerate(per_worker):
            if remote is not None:
                kind, message = remote
                raise kind(f"worker {rank}: {message}")
        return result
