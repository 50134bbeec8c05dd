"""Where records go beside metrics.jsonl. A logger is anything with these three methods."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .._util.csv_text import csv_text
from .._util.files import refuse_link
from .._util.names import unknown
from .._util.user_code import imported, is_factory
from . import files
from .records import Record


class Logger(Protocol):
    """A tracker: MLflow or W&B is a few lines. It hears of a record when the checkpoint with it is safe."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """The configuration, once a start."""
        ...

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of one record."""
        ...

    def close(self) -> None:
        """The run ends, well or badly."""
        ...


class CSV:
    """All records as metrics.csv, written anew each time, so that a run that went on has every row once."""

    def __init__(self, folder: Path, records: Sequence[Record]):
        self._path = folder / "metrics.csv"
        self._rows = [numbers(r) for r in records]
        self._write()

    def log_params(self, params: Mapping[str, Any]) -> None:
        pass

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.append(dict(metrics))
        self._write()

    def close(self) -> None:
        pass

    def _write(self) -> None:
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        files.replace(self._path, csv_text(columns, self._rows).encode())


class TensorBoard:
    """Event files under tensorboard/, begun anew at each start with the records so far."""

    def __init__(self, folder: Path, records: Sequence[Record]):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise ImportError("the logger tensorboard needs a package: pip install tensorboard") from missing
        place = folder / "tensorboard"
        refuse_link(place)
        for old in place.glob("events.out.tfevents.*"):
            files.remove(old)
        self._writer: Any = SummaryWriter(str(place))
        for record in records:
            self.log_metrics(record["step"], numbers(record))

    def log_params(self, params: Mapping[str, Any]) -> None:
        self._writer.add_text("config", f"```\n{json.dumps(params, indent=2)}\n```")

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


LOGGERS: Mapping[str, Callable[[Path, Sequence[Record]], Logger]] = {"csv": CSV, "tensorboard": TensorBoard}


def logger(name: str, folder: Path, records: Sequence[Record]) -> Logger:
    """One of ours, which starts from the records so far, or `package.module:factory`, called with the folder."""
    if name in LOGGERS:
        return LOGGERS[name](folder, records)
    if not is_factory(name):
        raise ValueError(unknown("logger", name, LOGGERS) + " Your own is `package.module:factory`.")
    made: Logger = imported(name, "logger")(folder)
    return made


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a record, those inside others by a path: measures/trace/value."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            found |= numbers({str(i + 1): v for i, v in enumerate(value)}, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            found[prefix + key] = value
    return found
