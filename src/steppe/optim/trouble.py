"""Whether everything that a step has seen is finite, as a number on the device that nobody has to look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..vector import Space, Vector
from .replicas import Replicas


class Trouble:
    """Sees every loss and gradient of a step."""

    def __init__(self, space: Space, flag: Tensor | None = None):
        self._space = space
        self._numbers: list[Tensor] = []  # must all be finite
        self._flag = flag  # raised by a kernel where an entry is not

    def see(self, loss: Tensor | None, grad: Vector | None) -> None:
        room, numbers = self._space.room, [] if loss is None else [loss]
        if room is None or not room.single:
            self._numbers += numbers if grad is None else [*numbers, grad.norm()]
            return
        if self._flag is None:
            self._flag = torch.zeros((), device=self._space.device)
        tensors = [] if grad is None else grad.chunks
        if numbers and numbers[0].dtype is torch.float32 and numbers[0].device == self._space.device:
            # by another name, lest autograd takes it for changed: the kernel writes every number again as it is
            tensors, numbers = [*tensors, numbers[0].data], []
        self._numbers += numbers
        room.flag_(self._flag, tensors)

    def total(self, settings: Iterable[Any], replicas: Replicas) -> Tensor:
        """0 if all losses and gradients are finite on every worker, else another number or NaN.

        Of the settings only what is not a number counts: SA-SAM's theta starts at infinity.
        """
        own = self._own(settings)
        return replicas.mean(own) if replicas.known else own

    def _own(self, settings: Iterable[Any]) -> Tensor:
        space, room, flag = self._space, self._space.room, self._flag
        numbers = self._numbers + [torch.where(v.isinf(), 0, v) for v in settings if isinstance(v, Tensor)]
        numbers = [torch.stack([x.to(space.device, space.precision) for x in numbers])] if numbers else []
        if room is not None and room.single and flag is not None:
            if numbers:
                room.flag_(flag, numbers)
            return flag
        total = numbers[0].sum()
        return total - total
