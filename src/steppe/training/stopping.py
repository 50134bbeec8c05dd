"""Signals that stop a run: it writes a checkpoint at its next step and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .schedule import Position

STOPS = (signal.SIGTERM, signal.SIGINT)


class Stopped(RuntimeError):
    """A signal stopped the run after it wrote a checkpoint; rerun the command to resume.

    Parameters
    ----------
    path
        The folder of the run.
    position
        How far it is.
    why
        The name of the signal.

    Examples
    --------
    A script that a scheduler starts again after the exit code 75:

    >>> def main(config):
    ...     try:
    ...         steppe.training.train(config)
    ...     except steppe.training.Stopped as stopped:
    ...         raise SystemExit(stopped.exit_code)
    >>> steppe.training.Stopped.exit_code
    75

    """

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later

    def __init__(self, path: Path, position: Position, why: str):
        super().__init__(f"stopped by {why} at {position}, with a checkpoint: rerun the command to resume in {path}")
        self.path, self.position = path, position


@dataclass
class StopRequest:
    """A request to stop; `why` names the signal, and is empty until one arrives."""

    why: str = ""

    def note(self, number: int, frame: Any) -> None:
        """Handle a signal; a second Ctrl-C raises KeyboardInterrupt instead of waiting for the next step."""
        again, self.why = bool(self.why), signal.Signals(number).name
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Record SIGTERM and SIGINT in a `StopRequest` during a block; in the main thread only, which alone can."""
    stop_request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop_request
        return
    before = {s: signal.signal(s, stop_request.note) for s in STOPS}
    try:
        yield stop_request
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopRequest):  # of a study, whose run may be past the step at which it would stop
                outer.why = outer.why or stop_request.why
