"""Per-epoch records: one line of JSON an epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._util.json import json_safe
from ..untrusted import from_json
from . import files
from .checkpoint import RECORDS

Record = dict[str, Any]

TIMINGS = ("images_per_second", "seconds", "evaluation_seconds")
"""What differs when a run is repeated; everything else in a record is a function of the configuration."""


def write(folder: Path, record: Mapping[str, Any]) -> int:
    """Adds a record and returns the length of the file."""
    return files.append(folder / RECORDS, (json.dumps(json_safe(record), allow_nan=False) + "\n").encode())


def read(folder: Path, length: int) -> list[Record]:
    """The records in the first `length` bytes: what comes after belongs to no checkpoint yet."""
    if not length:
        return []
    with (folder / RECORDS).open("rb") as file:
        return [from_json(line, folder / RECORDS) for line in file.read(length).splitlines()]
