"""What is said of input that is not what it should be, and how much of it is too much."""

from __future__ import annotations

from pathlib import Path

# Data sets live whole in memory: more than this is a mistake or an attack. TinyImageNet is 1.2 GiB.
MOST_BYTES = 16 * 2**30
# Photographs compress twofold, drawn digits tenfold; a bomb a thousandfold. Little files may be as empty as they like.
MOST_RATIO = 200
LITTLE = 64 * 2**20


class DataError(ValueError):
    """A file or folder that cannot be read as data; the message names it and says what is wrong."""


def affordable(path: Path | str, declared: int, stored: int, most: int = MOST_BYTES) -> None:
    """Refuses sizes that no data set has, before anything is read: what a file declares against what it stores."""
    if declared > most:
        raise DataError(f"{path}: it declares {declared:,} bytes, and the limit is {most:,}; it is damaged, or a bomb")
    if declared > LITTLE and declared > MOST_RATIO * stored:
        raise DataError(
            f"{path}: it declares {declared:,} bytes and stores {stored:,}, more than {MOST_RATIO} to 1; it is a bomb"
        )
