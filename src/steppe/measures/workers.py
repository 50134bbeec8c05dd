"""Sums over the workers that share the batches of an objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..core.vector import Vector


@dataclass(frozen=True)
class Workers:
    """The members of a process group, or this process alone."""

    group: Any = None

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group) if self.group is not None else 0

    @property
    def count(self) -> int:
        return dist.get_world_size(self.group) if self.group is not None else 1

    def total(self, number: Tensor) -> Tensor:
        """A tensor summed over the workers."""
        if self.group is not None:
            dist.all_reduce(number, group=self.group)
        return number

    def summed(self, vector: Vector) -> Vector:
        """A vector summed over the workers, in one message a device and dtype."""
        if self.group is None:
            return vector
        chunks = [x.clone() for x in vector.chunks]
        for kind in dict.fromkeys((x.device, x.dtype) for x in chunks):
            mine = [x for x in chunks if (x.device, x.dtype) == kind]
            message = self.total(torch.cat([x.reshape(-1) for x in mine]))
            start = 0
            for x in mine:
                x.copy_(message[start : start + x.numel()].view_as(x))
                start += x.numel()
        return Vector(vector.space, chunks)

    def gathered(self, numbers: Sequence[tuple[int, list[float]]]) -> list[tuple[int, list[float]]]:
        """Numbered rows of numbers from all workers, in the order of their numbers."""
        if self.group is None:
            return sorted(numbers)
        everybody: list[Any] = [None] * self.count
        dist.all_gather_object(everybody, list(numbers), group=self.group)
        return sorted(row for rows in everybody for row in rows)

    def share_trouble(self, mine: Exception | None) -> None:
        """Raises on every worker what was raised on one, which the others would wait for."""
        if mine is not None and self.group is None:
            raise mine
        if self.group is None:
            return
        everybody: list[Any] = [None] * self.count
        dist.all_gather_object(everybody, mine and (type(mine), str(mine)), group=self.group)
        if mine is not None:
            raise mine
        for rank, told in enumerate(everybody):
            if told is not None:
                raise told[0](f"worker {rank}: {told[1]}")
