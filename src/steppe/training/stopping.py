"""Signals that ask a run to end: it writes a checkpoint at its next step and goes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .position import Position

STOPS = (signal.SIGTERM, signal.SIGINT)


class Stopped(RuntimeError):
    """The run was asked to end, wrote a checkpoint and ended; the same command goes on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later

    def __init__(self, path: Path, position: Position, why: str):
        super().__init__(f"stopped by {why} at {position}, with a checkpoint: the same command goes on in {path}")
        self.path, self.position = path, position


@dataclass
class Wish:
    """Whether somebody wants the run to end, and how they said so."""

    why: str = ""

    def note(self, number: int, frame: Any) -> None:
        again, self.why = bool(self.why), signal.Signals(number).name
        if again and number == signal.SIGINT:  # whoever asks twice does not want to wait for the next step
            raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[Wish]:
    """Turns the signals into a wish while the block runs; only a main thread can."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {s: signal.signal(s, wish.note) for s in STOPS}
    try:
        yield wish
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
