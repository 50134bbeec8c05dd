"""The same dropout masks in every pass of a step, and a generator that moves on as if there had been one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class SameNoise(Protocol):
    """Brings every pass of a step the noise of the first."""

    def rewind(self) -> None: ...
    def resume(self) -> None: ...


class Noise:
    """The state of torch's global generators at the start of a step."""

    def __init__(self, devices: Sequence[torch.device]):
        self._generators = [torch.default_generator, *(_generator(d) for d in devices if d.type != "cpu")]
        self._start = self._states()
        self._after_first: list[Tensor | int] | None = None

    def rewind(self) -> None:
        """After a pass: the next one starts from the same noise."""
        if self._after_first is None:
            self._after_first = self._states()
        self._set(self._start)

    def resume(self) -> None:
        """After the last pass: goes on from where the first one ended."""
        if self._after_first is not None:
            self._set(self._after_first)

    def _states(self) -> list[Tensor | int]:
        return [g.get_offset() if g.device.type == "cuda" else g.get_state() for g in self._generators]

    def _set(self, states: list[Tensor | int]) -> None:
        for g, state in zip(self._generators, states, strict=True):
            if isinstance(state, int):  # how far a counter has come: its key stays the same within a step
                g.set_offset(state)
            else:
                g.set_state(state)


def _generator(device: torch.device) -> Any:
    return torch.get_device_module(device).default_generators[device.index or 0]
