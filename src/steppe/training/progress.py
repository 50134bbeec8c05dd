"""Progress of a run: bars on a terminal, a line per epoch in a log, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from .._util.terminal import bar, say, style
from .schedule import Position, Timeline
from .state import Sums

PAUSE = 0.25  # seconds between updates: each one synchronises with the device


class Lines:
    """One line per epoch, for logs, or nothing."""

    def __init__(self, timeline: Timeline, shown: bool):
        self._epochs, self._shown = timeline.epochs, shown

    def stepped(self, position: Position, sums: Sums) -> None:
        """Show a step; `sums` are those of the epoch so far."""

    def recorded(self, record: Mapping[str, Any]) -> None:
        """Show the record of an epoch."""
        if self._shown:
            say(f"epoch {record['epoch']} of {self._epochs}: {summary(record)}", error=True)


class Bars:
    """A bar of epochs and a bar of steps with loss, accuracy, speed and remaining time."""

    def __init__(self, bars: Any, timeline: Timeline, start: Position, batch: int):
        self._bars, self._course, self._batch = bars, timeline, batch
        self._run = bars.add_task("run", total=timeline.steps, completed=timeline.taken(start), now="")
        self._epoch = bars.add_task("epoch", total=timeline.per_epoch, completed=start.step, now="")
        self._steps, self._at = timeline.taken(start), monotonic()

    def stepped(self, position: Position, sums: Sums) -> None:
        now = monotonic()
        if now - self._at < PAUSE:
            return
        steps = self._course.taken(position)
        speed = (steps - self._steps) * self._batch / (now - self._at)
        self._steps, self._at = steps, now
        means = {f"train_{k}": v for k, v in sums.read().items()}
        number = f"epoch {position.epoch + 1}/{self._course.epochs}"
        length = self._course.length(position.epoch)
        text = summary(means | {"images_per_second": speed})
        self._bars.update(self._epoch, description=number, completed=position.step, total=length, now=text)
        self._bars.update(self._run, completed=steps)

    def recorded(self, record: Mapping[str, Any]) -> None:
        self._at = monotonic()  # exclude evaluation from the speed
        self._bars.update(self._run, completed=record["step"], now=summary(record, ("test_loss", "test_accuracy")))


@contextmanager
def progress_shown(progress: bool | None, timeline: Timeline, start: Position, batch: int) -> Iterator[Lines | Bars]:
    """Yield bars on a terminal unless `progress` is False; elsewhere lines if it is True, else nothing."""
    if style(progress) != "bars":
        yield Lines(timeline, shown=style(progress) == "lines")
        return
    with bar("remaining", "now") as bars:
        yield Bars(bars, timeline, start, batch)


WORDS = {
    "train_loss": "train loss {:.4f}",
    "train_accuracy": "train accuracy {:.2%}",
    "validation_accuracy": "validation accuracy {:.2%}",
    "test_loss": "test loss {:.4f}",
    "test_accuracy": "test accuracy {:.2%}",
    "ema_test_accuracy": "ema test accuracy {:.2%}",
    "swa_test_accuracy": "swa test accuracy {:.2%}",
    "images_per_second": "{:.0f} images/s",
}


def summary(record: Mapping[str, Any], only: tuple[str, ...] = tuple(WORDS)) -> str:
    """Return the main numbers of a record on one line."""
    return ", ".join(WORDS[k].format(record[k]) for k in only if record.get(k) is not None)
