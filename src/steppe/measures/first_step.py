"""The first step of an optimizer, as an objective takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.draw import Draw
from ..core.vector import Space, Vector


@dataclass
class FirstStepContext:
    """The context of a method's plan when an objective evaluates its probes: the first step, on one worker."""

    space: Space
    seed: int
    mask: Tensor | None
    options: Mapping[str, Any]
    step: int = 0
    alone: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

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
        return None

    def remember(self, slot: str, vector: Vector) -> None:
        pass

    def move(self, vector: Vector) -> None:
        pass

    def average_(self, vector: Vector) -> Vector:
        return vector

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers
