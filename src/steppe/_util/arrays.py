"""Arrays in .npy files followed by a digest, which other readers of .npy files ignore."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import files
from .digests import digest

TAIL = re.compile(rb"\n[0-9a-f]{32}")
LENGTH = 33  # of the tail in bytes


def save(file: Path, array: NDArray[Any]) -> None:
    """Write an array with its digest, atomically."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    body = content.getvalue()
    files.replace(file, body + b"\n" + digest([body]).encode())


def read(file: Path, digest_required: bool = False) -> NDArray[Any]:
    """Read an array; raise ValueError if its digest does not match, or is missing where it is required."""
    content = file.read_bytes()
    body, tail = content[:-LENGTH], content[-LENGTH:]
    has_digest = TAIL.fullmatch(tail) is not None
    if tail[1:].decode() != digest([body]) if has_digest else digest_required:
        raise ValueError(f"{file} is damaged: its digest does not match its content. Restore it from a copy")
    try:
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file} is not a .npy file, or is damaged: {error}") from error
    return array
