"""What the host puts into a step, kept apart so that a recorded step can be given new values before every replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

Key = tuple[int, ...]  # of a random draw: a seed, the number of the step, and what else tells draws apart
Make = Callable[[], Tensor]
Fill = Callable[[Tensor], object]

_running: Tape | None = None
_replayed: int | None = None  # the step whose values are being filled in


@dataclass
class Tape:
    """The memory that a recorded step reads, and how to fill it for another step.

    The memory is made in a rehearsal: what is made while a step is recorded may lie where an earlier operation of the
    step has its scratch, and would be overwritten in every replay.
    """

    _filled: list[tuple[Tensor, Fill]] = field(default_factory=list)
    _recorded: int | None = None  # how many of them a recording has taken up; None in a rehearsal

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Memory for values from the host is made and filled within, and kept."""
        global _running  # noqa: PLW0603
        self._filled, self._recorded, _running = [], None, self
        try:
            yield
        finally:
            _running = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Values from the host are noted within, not computed: they are to come into the rehearsal's memory."""
        global _running  # noqa: PLW0603
        self._recorded, _running = 0, self
        try:
            yield
        finally:
            _running = None

    def replay(self, step: int) -> None:
        """Fills in the values of a step."""
        global _replayed  # noqa: PLW0603
        _replayed = step
        try:
            for memory, fill in self._filled:
                fill(memory)
        finally:
            _replayed = None

    def _given(self, make: Make, fill: Fill) -> Tensor:
        if self._recorded is None:
            memory = make()
            fill(memory)
            self._filled.append((memory, fill))
            return memory
        if self._recorded == len(self._filled):
            raise RuntimeError("the step asks the host for more values than it did in its rehearsal")
        memory, _ = self._filled[self._recorded]
        self._filled[self._recorded] = (memory, fill)
        self._recorded += 1
        return memory


def from_host(make: Make, fill: Fill) -> Tensor:
    """Memory that is made and filled now, or, where a step is recorded, filled before each of its replays."""
    if _running is not None:
        return _running._given(make, fill)
    memory = make()
    fill(memory)
    return memory


def replaying() -> bool:
    """Whether a recorded step is being given the values of another one."""
    return _replayed is not None


def current(key: Key) -> Key:
    """The key that a draw has in the step that is taken now: a recorded one knows only the step it was recorded at."""
    return key if _replayed is None else (key[0], _replayed, *key[2:])
