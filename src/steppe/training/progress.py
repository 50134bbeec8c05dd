"""What a person sees of a run: bars on a terminal, a line an epoch in a log, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

from .._util.terminal import console, say
from .position import Course, Position
from .sums import Sums

PAUSE = 0.25  # seconds between two looks at the device, each of which waits for it


class Watcher(Protocol):
    """Hears how a run goes on."""

    def stepped(self, position: Position, sums: Sums) -> None:
        """A step was taken; sums are those of the epoch so far."""
        ...

    def recorded(self, record: Mapping[str, Any]) -> None:
        """An epoch is over."""
        ...


class Silent:
    """Says nothing."""

    def stepped(self, position: Position, sums: Sums) -> None:
        pass

    def recorded(self, record: Mapping[str, Any]) -> None:
        pass


class Lines:
    """A line an epoch, for logs."""

    def __init__(self, course: Course):
        self._epochs = course.epochs

    def stepped(self, position: Position, sums: Sums) -> None:
        pass

    def recorded(self, record: Mapping[str, Any]) -> None:
        say(f"epoch {record['epoch']} of {self._epochs}: {told(record)}", error=True)


class Bars:
    """A bar of epochs and a bar of steps with loss, accuracy, speed and time left."""

    def __init__(self, bars: Any, course: Course, start: Position, batch: int):
        self._bars, self._course, self._batch = bars, course, batch
        self._run = bars.add_task("run", total=course.steps, completed=course.taken(start), now="")
        self._epoch = bars.add_task("epoch", total=course.per_epoch, completed=start.step, now="")
        self._seen, self._at = course.taken(start), monotonic()

    def stepped(self, position: Position, sums: Sums) -> None:
        now = monotonic()
        if now - self._at < PAUSE:
            return
        taken = self._course.taken(position)
        speed = (taken - self._seen) * self._batch / (now - self._at)
        self._seen, self._at = taken, now
        means = {f"train_{k}": v for k, v in sums.read().items()}
        number = f"epoch {position.epoch + 1}/{self._course.epochs}"
        length = self._course.length(position.epoch)
        said = told(means | {"images_per_second": speed})
        self._bars.update(self._epoch, description=number, completed=position.step, total=length, now=said)
        self._bars.update(self._run, completed=taken)

    def recorded(self, record: Mapping[str, Any]) -> None:
        self._at = monotonic()  # evaluation is no training time
        self._bars.update(self._run, completed=record["step"], now=told(record, ("test_loss", "test_accuracy")))


@contextmanager
def watching(progress: bool | None, course: Course, start: Position, batch: int) -> Iterator[Watcher]:
    """Bars where there is a terminal, unless `progress` is False; lines elsewhere, if it is True."""
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield Silent()
    elif not sys.stderr.isatty():
        yield Lines(course)
    else:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        texts = (TextColumn(t, markup=False) for t in ("{task.description}", "{task.fields[now]}"))
        name, now = texts
        with Progress(
            name, BarColumn(), TimeRemainingColumn(), now, console=console(stderr=True), transient=True
        ) as bars:
            yield Bars(bars, course, start, batch)


WORDS = {
    "train_loss": "loss {:.4f}",
    "train_accuracy": "accuracy {:.2%}",
    "validation_accuracy": "validation {:.2%}",
    "test_loss": "test loss {:.4f}",
    "test_accuracy": "test {:.2%}",
    "ema_test_accuracy": "ema {:.2%}",
    "swa_test_accuracy": "swa {:.2%}",
    "images_per_second": "{:.0f} images/s",
}


def told(record: Mapping[str, Any], only: tuple[str, ...] = tuple(WORDS)) -> str:
    """The numbers of a record that a person follows."""
    return ", ".join(WORDS[k].format(record[k]) for k in only if record.get(k) is not None)
