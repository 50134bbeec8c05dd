"""What parameters that are stored together have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .roles import Role
from .shards import Sharding


@dataclass(frozen=True)
class Chunk:
    """Which parameters share a chunk, and what they have in common."""

    members: tuple[int, ...]
    group: int
    role: Role
    sharding: Sharding | None
    shape: torch.Size  # of one member, on all ranks together

    @property
    def stacked(self) -> bool:
        return len(self.members) > 1
