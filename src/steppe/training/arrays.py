"""Arrays in .npy files with a digest behind the numbers, where readers of other programs do not look."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.digests import digest
from . import files

TAIL = re.compile(rb"\n[0-9a-f]{32}")
LENGTH = 33  # of the tail in bytes


def save(file: Path, numbers: NDArray[Any]) -> None:
    """Writes an array with its digest."""
    content = io.BytesIO()
    np.save(content, numbers, allow_pickle=False)
    files.replace(file, content.getvalue() + b"\n" + digest([content.getvalue()]).encode())


def read(file: Path) -> NDArray[Any]:
    """The array in a file, which is refused if it has another digest; one without a digest is read as it is."""
    content = file.read_bytes()
    body, tail = content[:-LENGTH], content[-LENGTH:]
    if TAIL.fullmatch(tail) and tail[1:].decode() != digest([body]):
        raise ValueError(f"{file} is damaged: it does not have the digest that was written with it. Bring it back")
    try:
        found: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file} is no .npy file, or is damaged: {error}") from error
    return found
