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
    def active(self, *, capturing: bool) -> Iterator[None]:
        """A context of `from_host`: in a warm-up it allocates buffers and keeps them here; a capture reads these."""
        if not capturing:
            self._buffers = []
        self._captured = 0 if capturing else None
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def fill(self, step: int) -> None:
        """Fills the buffers with the values of the step with this number."""
        for buffer, fill in self._buffers:
            fill(buffer, step)

    def next_buffer(self, fill: Fill) -> Tensor | None:
        """In a capture, the next buffer of the warm-up, in their order, without filling it; otherwise None."""
        if self._captured is None:
            return None
        if self._captured == len(self._buffers):
            raise RuntimeError("the captured step reads more values from the host than its warm-up did")
        buffer, _ = self._buffers[self._captured]
        self._buffers[self._captured] = (buffer, fill)
        self._captured += 1
        return buffer


def from_host(make: Make, fill: Fill) -> Tensor:
    """A buffer from `make`, filled by `fill` now, or before every replay if the step is captured."""
    inputs = _active.get()
    captured = inputs.next_buffer(fill) if inputs is not None else None
    if captured is not None:
        return captured
    buffer = make()
    fill(buffer, None)
    if inputs is not None:
        inputs._buffers.append((buffer, fill))
    return buffer
