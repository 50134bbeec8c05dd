"""When the members of an ensemble exchange scores, as one text in a configuration, and the files that come of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FORM = re.compile(r"exchanged@(\d+)(?:\+(\d+))?")


@dataclass(frozen=True)
class Exchange:
    """After so many epochs members say which rows are sharp for them, and again every so many, if so."""

    first: int
    every: int | None = None

    def __post_init__(self) -> None:
        if self.first < 1 or (self.every is not None and self.every < 1):
            raise ValueError(f"scores are exchanged after 1 epoch or more, and every 1 or more, not {self}")

    @classmethod
    def of(cls, text: str | None) -> Exchange | None:
        """What `exchanged@10` or `exchanged@10+5` says; None of any other text."""
        found = FORM.fullmatch(text or "")
        return None if found is None else cls(int(found[1]), int(found[2]) if found[2] else None)

    def __str__(self) -> str:
        return f"exchanged@{self.first}" + (f"+{self.every}" if self.every is not None else "")

    def holding(self, epoch: int) -> int | None:
        """The exchange that an epoch follows, by the number of epochs before it; None before the first."""
        if epoch < self.first:
            return None
        return self.first if self.every is None else epoch - (epoch - self.first) % self.every

    def epochs(self, of: int) -> list[int]:
        """All exchanges of a run of so many epochs."""
        return list(range(self.first, of, self.every or of))


def scores_file(folder: Path, epoch: int) -> Path:
    """A number for every training row, after so many epochs: what a member tells the others."""
    return folder / f"scores-{epoch}.npy"


def rows_file(folder: Path, epoch: int) -> Path:
    """The numbers of the rows that are sharpness-aware from there on."""
    return folder / f"sharp-{epoch}.npy"
