"""Per-epoch records: one JSON line per epoch in metrics.jsonl, and loggers that receive them too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

from .._util import files
from .._util.digests import digest
from .._util.export import csv_text, json_safe
from .._util.names import unknown
from .._util.untrusted import from_json
from .._util.user_code import imported, is_factory
from .checkpoint import RECORDS, Kept

Record = dict[str, Any]

TIMINGS = ("images_per_second", "seconds", "evaluation_seconds")
"""Entries that differ when a run is repeated; all others are a function of the configuration."""


def write(folder: Path, record: Mapping[str, Any], before: Kept) -> Kept:
    """Append a record; return the length and digest of all records."""
    line = (json.dumps(json_safe(record), allow_nan=False) + "\n").encode()
    return Kept(files.append(folder / RECORDS, line), _digest(before.digest or "", line))


def read(folder: Path, kept: Kept) -> list[Record]:
    """Read the records of a checkpoint; later lines belong to none yet. Raise ValueError if they have changed."""
    return [from_json(line, f"{folder / RECORDS} is damaged") for line in _lines(folder, kept)]


def with_digest(folder: Path, kept: Kept) -> Kept:
    """Return `kept` with a digest, also where the checkpoint was written in the format without digests."""
    return Kept(kept.length, reduce(_digest, _lines(folder, kept), ""))


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record; nested ones are named by their path, such as measures/trace/value."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            flat |= numbers({str(i + 1): v for i, v in enumerate(value)}, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            flat[prefix + key] = value
    return flat


class Logger(Protocol):
    """Receives records beside metrics.jsonl: for example an adapter for MLflow or W&B.

    `log_metrics` is called after the checkpoint that contains the record is written: a resumed run logs no epoch twice.
    """

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Receive the configuration, once per start of the run."""
        ...

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the numbers of one record."""
        ...

    def close(self) -> None:
        """Release resources: the run ends, finished or not."""
        ...


class CSV:
    """All records in metrics.csv, rewritten each time, so that a resumed run has every row once."""

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
    """Event files under tensorboard/, rewritten at each start from the records so far."""

    def __init__(self, folder: Path, records: Sequence[Record]):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise ImportError("the logger tensorboard needs a package: pip install 'steppe[tensorboard]'") from missing
        place = folder / "tensorboard"
        files.refuse_link(place)
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
    """Build a logger: one of LOGGERS, with the records so far, or `package.module:factory`, called with the folder."""
    if name in LOGGERS:
        return LOGGERS[name](folder, records)
    if not is_factory(name):
        raise ValueError(unknown("logger", name, LOGGERS) + " Your own is `package.module:factory`.")
    made: Logger = imported(name, "logger")(folder)
    return made


def _lines(folder: Path, kept: Kept) -> list[bytes]:
    path = folder / RECORDS
    content = b""
    if kept.length and path.exists():
        with path.open("rb") as file:
            content = file.read(kept.length)
    if len(content) < kept.length:
        raise ValueError(
            f"{path} has {len(content)} bytes, and {kept.length} belong to the checkpoint beside it: the file was "
            "changed or lost. Restore it, or start the run in another folder."
        )
    lines = content.splitlines(keepends=True)
    if kept.digest is not None and reduce(_digest, lines, "") != kept.digest:
        raise ValueError(
            f"{path} is damaged: its first {len(lines)} lines do not match the digest in the checkpoint beside it. "
            "Restore it from a copy, or start the run in another folder."
        )
    return lines


def _digest(before: str, line: bytes) -> str:
    """Return the digest of all lines from the digest of the lines before this one."""
    return digest([before, line])
