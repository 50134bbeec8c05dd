"""Losses on a grid as a value that keeps in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, cast
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from .._util.files import atomic_write
from .._util.untrusted import from_json
from ..data.npy import arrays
from .estimate import Cost

Array = NDArray[np.float64]
FORMAT = "steppe slice 1"


@dataclass(frozen=True, eq=False)
class Slice:
    """Losses on a grid: losses[i, j] is that at w + axes[0][i] a + axes[1][j] b, for directions a and b.

    A loss that is infinite or not a number stays so; a point that was never reached is nan and not `filled`.
    """

    axes: tuple[Array, ...]
    losses: Array
    filled: NDArray[np.bool_]
    names: tuple[str, ...]  # what each direction is
    lengths: tuple[float, ...]  # the Euclidean norm of each direction
    seeds: tuple[int | None, ...]
    cosine: float | None = None  # of the angle between the two directions of a plane
    cost: Cost = field(default_factory=Cost)
    notes: Mapping[str, Any] = field(default_factory=dict)  # whatever else JSON can hold

    @property
    def complete(self) -> bool:
        return bool(self.filled.all())

    @property
    def nonfinite(self) -> int:
        """How many losses came out infinite or not a number."""
        return int((self.filled & ~np.isfinite(self.losses)).sum())

    @property
    def lowest(self) -> tuple[int, ...] | None:
        """Where on the grid the smallest loss is, or None if no point has a finite one."""
        finite = np.where(np.isfinite(self.losses), self.losses, np.inf)
        place = np.unravel_index(int(finite.argmin()), finite.shape)
        return tuple(int(i) for i in place) if np.isfinite(finite[place]) else None

    def about(self) -> dict[str, Any]:
        """Everything but the numbers on the grid."""
        plain = ("names", "lengths", "seeds", "cosine", "notes")
        return {"format": FORMAT, **{k: getattr(self, k) for k in plain}, "cost": asdict(self.cost)}

    def to_dict(self) -> dict[str, Any]:
        """Everything in types that JSON has: what is no number by its name, losses that are missing as None."""
        losses = np.full(self.losses.shape, None, dtype=object)
        for index in zip(*np.nonzero(self.filled), strict=True):
            losses[index] = _plain(float(self.losses[index]))
        grid = {"axes": [axis.tolist() for axis in self.axes], "losses": losses.tolist(), "complete": self.complete}
        return {**self.about(), "lengths": [_plain(x) for x in self.lengths], **grid}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a NumPy .npz file, whole or not at all."""
        about = json.dumps(self.about())
        axes = {f"axis{k}": axis for k, axis in enumerate(self.axes)}
        with atomic_write(path) as file:
            np.savez(file, about=np.array(about), losses=self.losses, filled=self.filled, **cast(Any, axes))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Slice:
        """Reads what save() wrote; nothing in the file is run."""
        place = os.fspath(path)
        if not is_zipfile(path):
            raise ValueError(f"{place} is no .npz file: Slice.save() writes such files")
        held = arrays(Path(path))
        about = from_json(str(held["about"]), place) if "about" in held else {}
        if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
            raise ValueError(f"{place} holds no slice of a loss: Slice.save() writes such files")
        try:
            axes = tuple(held[f"axis{k}"] for k in range(held["losses"].ndim))
            about |= {k: tuple(about[k]) for k in ("names", "lengths", "seeds")} | {"cost": Cost(**about["cost"])}
            return Slice(axes, held["losses"], held["filled"], **about)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{place} is not as Slice.save() wrote it: {error!r}") from error


def blank(
    axes: Sequence[Sequence[float] | Array], names: Sequence[str], lengths: Sequence[float], seeds: Sequence[int | None]
) -> Slice:
    """A slice with no point filled."""
    grid = tuple(np.array(axis, dtype=np.float64) for axis in axes)
    if not all(axis.ndim == 1 and len(axis) and np.isfinite(axis).all() for axis in grid):
        raise ValueError("an axis is a list of finite coordinates, one at least")
    shape = tuple(len(axis) for axis in grid)
    losses, filled = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    return Slice(grid, losses, filled, tuple(names), tuple(lengths), tuple(seeds))


def _plain(x: float) -> float | str:
    return x if isfinite(x) else str(x)
