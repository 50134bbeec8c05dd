"""Values that the host writes into a captured step: buffers that are filled again before every replay.

This is in core, below the CUDA graphs that use it, because random draws and row indices are such values: code in core
computes them on the host and calls `from_host`, whether the step is captured or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import Tensor

Make = Callable[[], Tensor]
Fill = Callable[[Tensor, int | None], object]
"""Writes the values of a step into a buffer: of the step with this number, or of the step that is running (None)."""

_active: ContextVar[GraphInputs | None] = ContextVar("_active", default=None)  # of a call in warm-up or capture


@dataclass
class GraphInputs:
    """The buffers that a captured step reads, and the functions that fill them for another step.

    The warm-up allocates the buffers. A buffer that is allocated during the capture may share memory with the scratch
    space of an earlier kernel of the graph, and every replay would overwrite it.
    """

    _buffers: list[tuple[Tensor, Fill]] = field(default_factory=list)
    _captured: int | None = None  # how many buffers the capture has reached; None in the warm-up

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """A context in which `from_host` allocates and fills buffers, and keeps them here."""
        self._buffers = []
        with self._activated(None):
            yield

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """A context in which `from_host` returns the buffers of the warm-up, in their order, without filling them."""
        with self._activated(0):
            yield

    @contextmanager
    def _activated(self, captured: int | None) -> Iterator[None]:
        self._captured = captured
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def fill(self, step: int) -> None:
        """Fills the buffers with the values of the step with this number."""
        for buffer, fill in self._buffers:
            fill(buffer, step)

    def _buffer(self, make: Make, fill: Fill) -> Tensor:
        if self._captured is None:
            buffer = make()
            fill(buffer, None)
            self._buffers.append((buffer, fill))
            return buffer
        if self._captured == len(self._buffers):
            raise RuntimeError("the captured step reads more values from the host than its warm-up did")
        buffer, _ = self._buffers[self._captured]
        self._buffers[self._captured] = (buffer, fill)
        self._captured += 1
        return buffer


def from_host(make: Make, fill: Fill) -> Tensor:
    """A buffer from `make`, filled by `fill` now, or before every replay if the step is captured."""
    inputs = _active.get()
    if inputs is not None:
        return inputs._buffer(make, fill)
    buffer = make()
    fill(buffer, None)
    return buffer
