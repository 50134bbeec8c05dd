"""Steps with their random numbers as CUDA graphs."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Generator

from .graphs import CudaGraphs


@final
class PassGenerators:
    """A generator for every pass of a recorded step, all set alike before a replay."""

    def __init__(self, device: torch.device, passes: int):
        self._own: Any = torch.cuda.default_generators[device.index or 0]
        self._first = self._own.graphsafe_get_state()
        self.generators: list[Generator] = [self._own.clone_state() for _ in range(passes)]
        self._next = iter(self.generators)

    def rewind(self) -> None:
        self._own.graphsafe_set_state(next(self._next))

    def resume(self) -> None:
        self._own.graphsafe_set_state(self._first)

    restart = resume

    def replay(self) -> None:
        state = self._own.get_state()
        for generator in self.generators:
            generator.set_state(state)


@final
class StepGraphs:
    """Records steps, each pass with a generator of its own."""

    def __init__(self, device: torch.device):
        graphs = CudaGraphs(device)
        self._device = device
        self.aside, self.rehearsing, self.record = graphs.aside, graphs.rehearsing, graphs.record

    def noise(self, passes: int) -> PassGenerators:
        return PassGenerators(self._device, passes)
