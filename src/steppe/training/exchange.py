"""When the members of an ensemble exchange their scores of rows, and the files that they do it with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FORM = re.compile(r"exchanged@(\d+)(?:\+(\d+))?")


@dataclass(frozen=True)
class Exchange:
    """Exchange scores after epoch `first` and, if `every` is given, after every so many epochs from there."""

    first: int
    every: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1 or (self.every is not None and self.every < 1):
            raise ValueError(f"scores are exchanged after 1 epoch or more, and every 1 or more, not {self}")

    @classmethod
    def of(cls, text: str | None) -> Exchange | None:
        """Parse `exchanged@10` or `exchanged@10+5`; return None for any other text."""
        parts = FORM.fullmatch(text or "")
        return None if parts is None else cls(int(parts[1]), int(parts[2]) if parts[2] else None)

    def __str__(self) -> str:
        return f"exchanged@{self.first}" + (f"+{self.every}" if self.every is not None else "")

    def holding(self, epoch: int) -> int | None:
        """Return the epoch of the last exchange before an epoch; None before the first."""
        if epoch < self.first:
            return None
        return self.first if self.every is None else epoch - (epoch - self.first) % self.every

    def epochs(self, of: int) -> list[int]:
        """Return all exchanges of a run of `of` epochs."""
        return list(range(self.first, of, self.every or of))


def scores_file(folder: Path, epoch: int) -> Path:
    """Return the file with a member's score for every training row after an epoch."""
    return folder / f"scores-{epoch}.npy"


def rows_file(folder: Path, epoch: int) -> Path:
    """Return the file with the numbers of a member's sharp rows from an epoch on."""
    return folder / f"sharp-{epoch}.npy"
