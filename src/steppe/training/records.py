"""Per-epoch records: one line of JSON an epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from .._util.digests import digest
from .._util.json import json_safe
from .._util.untrusted import from_json
from . import files
from .checkpoint import RECORDS, Kept

Record = dict[str, Any]

TIMINGS = ("images_per_second", "seconds", "evaluation_seconds")
"""What differs when a run is repeated; everything else in a record is a function of the configuration."""


def write(folder: Path, record: Mapping[str, Any], before: Kept) -> Kept:
    """Adds a record to those before it, and returns what is kept now."""
    line = (json.dumps(json_safe(record), allow_nan=False) + "\n").encode()
    return Kept(files.append(folder / RECORDS, line), _digest(before.digest or "", line))


def read(folder: Path, kept: Kept) -> list[Record]:
    """The records of a checkpoint: what comes after them belongs to none yet. Refuses them if they have changed."""
    return [from_json(line, f"{folder / RECORDS} is damaged") for line in _lines(folder, kept)]


def known(folder: Path, kept: Kept) -> Kept:
    """The same with a digest, also if it was written when there were none."""
    return Kept(kept.length, reduce(_digest, _lines(folder, kept), ""))


def _lines(folder: Path, kept: Kept) -> list[bytes]:
    path = folder / RECORDS
    content = b""
    if kept.length and path.exists():
        with path.open("rb") as file:
            content = file.read(kept.length)
    if len(content) < kept.length:
        raise ValueError(
            f"{path} has {len(content)} bytes, and {kept.length} belong to the checkpoint beside it: the file was "
            "changed or lost. Bring it back, or start the run in another folder."
        )
    lines = content.splitlines(keepends=True)
    if kept.digest is not None and reduce(_digest, lines, "") != kept.digest:
        raise ValueError(
            f"{path} is damaged: its first {len(lines)} lines do not have the digest that was written with the "
            "checkpoint beside it. Bring it back from a copy, or start the run in another folder."
        )
    return lines


def _digest(before: str, line: bytes) -> str:
    """Of all lines so far, from that of the lines before this one."""
    return digest([before, line])
