"""The same dropout masks in every pass of a step, and a generator that moves on as if there had been one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class SameNoise(Protocol):
    """Brings every pass of a step the noise of the first."""

    def rewind(self) -> None: ...
    def resume(self) -> None: ...


class Noise:
    """The state of torch's global generators at the start of a step."""

    def __init__(self, devices: Sequence[torch.device]):
        self._devices = [torch.device("cpu"), *(d for d in devices if d.type != "cpu")]
        self._start = self._states()
        self._after_first: list[Tensor] | None = None

    def rewind(self) -> None:
        """After a pass: the next one starts from the same noise."""
        if self._after_first is None:
            self._after_first = self._states()
        self._set(self._start)

    def resume(self) -> None:
        """After the last pass: goes on from where the first one ended."""
        if self._after_first is not None:
            self._set(self._after_first)

    def _states(self) -> list[Tensor]:
        return [
            torch.get_rng_state() if d.type == "cpu" else torch.get_device_module(d).get_rng_state(d)
            for d in self._devices
        ]

    def _set(self, states: list[Tensor]) -> None:
        for d, state in zip(self._devices, states, strict=True):
            if d.type == "cpu":
                torch.set_rng_state(state)
            else:
                torch.get_device_module(d).set_rng_state(state, d)
