"""The language of plans: a method asks for losses and gradients somewhere, and returns a gradient."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .draw import Draw
from .rows import Rows, whole
from .vector import Space, Vector


@dataclass(frozen=True)
class Probe:
    """Asks for the loss and gradient at the weights displaced by `at`, which it consumes."""

    at: Vector | None = None  # None: at the weights themselves
    rows: Rows = whole  # of the batch
    sync: bool = True  # average the gradient over workers
    grad: bool = True  # False: the losses alone, without a backward pass


@dataclass
class Reading:
    """Answers a probe; owns its gradient."""

    _grad: Vector | None
    _loss: Tensor | None
    _mean: Callable[[Tensor], Tensor]  # over workers
    losses: Tensor | None = None  # one a row, where the loop gave them unreduced
    batch: int | None = None  # how many rows the batch has, where the loop selected some
    _averaged: Tensor | None = field(default=None, repr=False)

    @property
    def grad(self) -> Vector:
        if self._grad is None:
            raise RuntimeError("this probe asked for losses only (grad=False): it has no gradient to read")
        return self._grad

    @property
    def loss(self) -> Tensor:
        """The mean loss, over workers too if the gradient is."""
        if self._loss is None:
            raise RuntimeError("the method needs the value of the loss: return it from the closure")
        if self._averaged is None:
            self._averaged = self._mean(self._loss)
        return self._averaged


Plan = Generator[Probe, Reading, Vector]


class Site(Protocol):
    """What a plan may see: the weights and their space, the options of the groups, its own memory."""

    step: int
    settings: dict[str, Any]  # group options to set when the step is taken, such as lr
    mask: Tensor | None  # over the batch, where the caller gave one

    @property
    def alone(self) -> bool: ...  # no other workers share the step
    @property
    def space(self) -> Space: ...
    @property
    def weights(self) -> Vector: ...
    def option(self, name: str) -> Any: ...
    def draw(self, sample: int, grad: Vector) -> Draw: ...
    def key(self, sample: int) -> tuple[int, ...]: ...
    def momentum(self) -> Vector | None: ...
    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None: ...
    def remember(self, slot: str, vector: Vector) -> None: ...
    def average_(self, vector: Vector) -> Vector: ...  # over workers
    def mean(self, numbers: Tensor) -> Tensor: ...  # over workers


class Method(Protocol):
    """A way to compute the gradient that the base optimizer sees."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors it keeps between steps."""
        ...

    def options(self) -> Mapping[str, Any]:
        """Defaults of the group options that it reads."""
        ...

    def cost(self, step: int) -> int:
        """How many probes it makes at that step, on a batch with rows of every kind."""
        ...

    def pattern(self, step: int) -> Hashable:
        """What is the same for steps that do the same work on other numbers, so that a recording of one serves them.

        None for a step that no recording serves. Asked only from the second step on.
        """
        ...

    def plan(self, site: Site) -> Plan: ...


def pattern_of(method: Method, step: int) -> Hashable:
    """A method's pattern, or None if it does not say: a method of one's own works without."""
    return method.pattern(step) if hasattr(method, "pattern") else None


def follow(plan: Plan, answer: Callable[[Probe], Reading]) -> Vector:
    """The gradient that a plan returns when every probe is answered by a function."""
    reading: Any = None
    while True:
        try:
            with torch.no_grad():
                probe = plan.send(reading)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        reading = answer(probe)
