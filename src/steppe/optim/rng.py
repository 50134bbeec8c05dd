"""The same dropout masks in every pass of a step, and a generator that moves on as if there had been one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch

CPU = torch.device("cpu")


class SameNoise(Protocol):
    """Brings every pass of a step the noise of the first."""

    def rewind(self) -> None: ...
    def resume(self) -> None: ...
    def restart(self) -> None: ...


class Noise:
    """The state of torch's global generators at the start of a step."""

    def __init__(self, devices: Sequence[torch.device]):
        self._accesses = [_access(d) for d in (CPU, *(d for d in devices if d.type != "cpu"))]
        self._start = self._states()
        self._after_first: list[Any] | None = None

    def rewind(self) -> None:
        """After a pass: the next one starts from the same noise."""
        if self._after_first is None:
            self._after_first = self._states()
        self._set(self._start)

    def resume(self) -> None:
        """After the last pass: goes on from where the first one ended."""
        if self._after_first is not None:
            self._set(self._after_first)

    def restart(self) -> None:
        """As before the step."""
        self._set(self._start)

    def _states(self) -> list[Any]:
        return [get() for get, _ in self._accesses]

    def _set(self, states: list[Any]) -> None:
        for (_, put), state in zip(self._accesses, states, strict=True):
            put(state)


@lru_cache
def _access(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """How the state of a device's global generator is read and set."""
    if device == CPU:
        return torch.default_generator.get_state, torch.default_generator.set_state
    own: Any = torch.get_device_module(device).default_generators[device.index or 0]
    if device.type == "cuda":  # how far a counter has come: its key stays the same within a step
        return own.get_offset, own.set_offset
    return own.get_state, own.set_state
