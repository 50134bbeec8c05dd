"""A point in weight space without an optimizer: what a ball or a law needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steppe.core.draw import Draw
from steppe.core.modules import Role
from steppe.core.vector import Space, Vector


@dataclass
class BareSite:
    """The weights given, all of them `named weight` unless roles say otherwise."""

    tensors: list[Tensor]
    groups: list[int] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        roles = self.roles or [Role(weight=True, norm=False)] * len(self.tensors)
        self.space = Space(self.tensors, self.groups, roles)

    @property
    def weights(self) -> Vector:
        return self.space.weights()

    def option(self, name: str) -> Any:
        return self.options[name]

    def vector(self, *tensors: Tensor) -> Vector:
        return self.space.vector(list(tensors)).clone()

    def draw(self, *key: int) -> Draw:
        return Draw(self.space, key, self.weights, self.weights)


def flat(vector: Vector) -> Tensor:
    """All entries in the order of the parameters."""
    return torch.cat([t.reshape(-1) for t in vector.tensors]) if vector.tensors else torch.zeros(0)
