"""What the host puts into a step, kept apart so that a recorded step can be given new values before every replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Key = tuple[int, ...]  # of a random draw: a seed, the number of the step, and what else tells draws apart
Fill = Callable[[Tensor], object]

_recording: Tape | None = None
_replayed: int | None = None  # the step whose values are being filled in


@dataclass
class Tape:
    """The memory that a recorded step reads, and how to fill it for another step."""

    outside: Callable[[], AbstractContextManager[Any]]  # where memory is made that a recorded step does not write to
    _filled: list[tuple[Tensor, Fill]] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Values from the host are noted within, not computed."""
        global _recording  # noqa: PLW0603
        _recording = self
        try:
            yield
        finally:
            _recording = None

    def replay(self, step: int) -> None:
        """Fills in the values of a step."""
        global _replayed  # noqa: PLW0603
        _replayed = step
        try:
            for memory, fill in self._filled:
                fill(memory)
        finally:
            _replayed = None


def from_host(make: Callable[[], Tensor], fill: Fill) -> Tensor:
    """Memory that is made and filled now, or, where a step is recorded, before each of its replays."""
    if _recording is None:
        memory = make()
        fill(memory)
        return memory
    with _recording.outside():
        memory = make()
    _recording._filled.append((memory, fill))
    return memory


def replaying() -> bool:
    """Whether a recorded step is being given the values of another one."""
    return _replayed is not None


def current(key: Key) -> Key:
    """The key that a draw has in the step that is taken now: a recorded one knows only the step it was recorded at."""
    return key if _replayed is None else (key[0], _replayed, *key[2:])
