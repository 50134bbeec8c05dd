"""What a plan sees when an objective answers its probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..core.draw import Draw
from ..core.vector import Space, Vector

if TYPE_CHECKING:
    from .objective import Objective


@dataclass
class FirstStep:
    """What a plan sees when an objective answers it: no history, and no workers but this one."""

    objective: Objective
    seed: int
    mask: Tensor | None
    options: Mapping[str, Any]
    step: int = 0
    alone: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Vector] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        return self.objective.space

    @property
    def weights(self) -> Vector:
        return self.space.weights()

    def option(self, name: str) -> Any:
        return self.options[name]

    def key(self, sample: int) -> tuple[int, ...]:
        return (self.seed, self.step, sample)

    def draw(self, sample: int, grad: Vector) -> Draw:
        return Draw(self.space, self.key(sample), self.weights, grad)

    def momentum(self) -> Vector | None:
        return None

    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None:
        return self.memory.get(slot)

    def remember(self, slot: str, vector: Vector) -> None:
        self.memory[slot] = vector

    def average_(self, vector: Vector) -> Vector:
        return vector

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers
