"""Per-epoch records: one JSON line per epoch in metrics.jsonl, and what loggers receive of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from .._util import files
from .._util.digests import digest
from .._util.export import json_safe
from .._util.untrusted import from_json
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
    """Return the finite numbers of a record; nested ones are named by their path, such as measures/trace/value."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            flat |= numbers({str(i + 1): v for i, v in enumerate(value)}, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and isfinite(value):  # metrics.jsonl has null for others
            flat[prefix + key] = value
    return flat


class Logger(Protocol):
    """Receives records beside metrics.jsonl.

    `log_metrics` is called after the checkpoint that contains the record is written, so that a resumed run logs no
    epoch twice. A logger may also have an attribute `last_step`, read after `log_params`: the step of the last record
    that it has, 0 for none. Each start of the run then hands over the records after it, for example those that a killed
    process could not log.

    Examples
    --------
    >>> class Printer:
    ...     def __init__(self, folder): ...
    ...     def log_params(self, params): ...
    ...     def log_metrics(self, step, metrics): print(step, metrics["test_accuracy"])
    ...     def close(self): ...
    >>> logger = Printer("runs/a")  # `train` builds it from loggers=["package.module:Printer"]
    >>> logger.log_metrics(10, {"test_accuracy": 0.75})
    10 0.75

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
