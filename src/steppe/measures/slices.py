"""Losses on a grid along one or two directions, as a value that can be saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from .._util.files import atomic_write
from .._util.formats import from_json
from ..data.arrays import read_npz
from .estimate import Cost

Array = NDArray[np.float64]
FORMAT = "steppe slice 1"


@dataclass(frozen=True, eq=False)
class Slice:
    """Losses on a grid: losses[i, j] is the loss at w + axes[0][i] a + axes[1][j] b, for directions a and b.

    Parameters
    ----------
    axes, losses
        The coordinates, and the losses there; infinite and nan losses are kept.
    filled
        Which points are evaluated; the others are nan.
    names, lengths, seeds
        Of each direction: a description, the Euclidean norm, and the seed of a random one.
    cosine
        Of the angle between the two directions of a plane.
    cost
        The work so far.
    notes
        Anything else that JSON can hold.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> line = steppe.measures.slice_1d(objective, objective.weights, points=3)
    >>> line.axes[0].tolist(), line.losses.tolist()
    ([-1.0, 0.0, 1.0], [0.0, 2.5, 10.0])
    >>> line.excess.tolist()
    [-2.5, 0.0, 7.5]

    """

    axes: tuple[Array, ...]
    losses: Array
    filled: NDArray[np.bool_]
    names: tuple[str, ...]
    lengths: tuple[float, ...]
    seeds: tuple[int | None, ...]
    cosine: float | None = None
    cost: Cost = field(default_factory=Cost)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return bool(self.filled.all())

    @property
    def nonfinite(self) -> int:
        """How many losses are infinite or not a number."""
        return int((self.filled & ~np.isfinite(self.losses)).sum())

    @property
    def lowest(self) -> tuple[int, ...] | None:
        """The index of the smallest loss, or None if no loss is finite."""
        finite = np.where(np.isfinite(self.losses), self.losses, np.inf)
        place = np.unravel_index(int(finite.argmin()), finite.shape)
        return tuple(int(i) for i in place) if np.isfinite(finite[place]) else None

    @property
    def centre(self) -> tuple[int, ...] | None:
        """The index of the weights themselves, or None if the grid does not contain them."""
        zeros = [np.flatnonzero(axis == 0) for axis in self.axes]
        return tuple(int(places[0]) for places in zeros) if all(len(places) for places in zeros) else None

    @property
    def baseline(self) -> float:
        """The loss at the weights; the lowest loss if the weights are not on the grid or their loss is not finite."""
        for place in (self.centre, self.lowest):
            if place is not None and isfinite(self.losses[place]):
                return float(self.losses[place])
        raise ValueError("no point of the grid has a finite loss: there is nothing to subtract")

    @property
    def excess(self) -> Array:
        """The losses minus the loss at the weights."""
        above: Array = self.losses - self.baseline
        return above

    def about(self) -> dict[str, Any]:
        """The metadata: everything but the numbers on the grid."""
        plain = ("names", "lengths", "seeds", "cosine", "notes")
        return {"format": FORMAT, **{k: getattr(self, k) for k in plain}, "cost": asdict(self.cost)}

    def plot(self, view: Literal["contour", "surface"] = "contour", *, log: bool = False) -> Any:
        """A plotly figure, as `figure` draws it.

        Parameters
        ----------
        view
            Of a plane: "contour" or "surface".
        log
            Draw the rise on a logarithmic scale instead of a linear one.

        """
        from .plotting import figure

        return figure(self, view, log=log)

    def to_dict(self) -> dict[str, Any]:
        """All fields in JSON types: infinite and nan losses as text, missing ones as None."""
        losses = np.full(self.losses.shape, None, dtype=object)
        for index in zip(*np.nonzero(self.filled), strict=True):
            losses[index] = _plain(float(self.losses[index]))
        grid = {"axes": [axis.tolist() for axis in self.axes], "losses": losses.tolist(), "complete": self.complete}
        return {**self.about(), "lengths": [_plain(x) for x in self.lengths], **grid}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a NumPy .npz file atomically."""
        about = json.dumps(self.about())
        axes = {f"axis{k}": axis for k, axis in enumerate(self.axes)}
        with atomic_write(path) as file:
            np.savez(file, about=np.array(about), losses=self.losses, filled=self.filled, **cast(Any, axes))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Slice:
        """Read a file of `save`; nothing in it is executed."""
        name = os.fspath(path)
        if not is_zipfile(path):
            raise ValueError(f"{name} is not an .npz file as Slice.save() writes it")
        contents = read_npz(Path(path))
        about = from_json(str(contents["about"]), name) if "about" in contents else {}
        if not isinstance(about, dict) or about.pop("format", None) != FORMAT:
            raise ValueError(f"{name} holds no slice as Slice.save() writes it")
        try:
            axes = tuple(contents[f"axis{k}"] for k in range(contents["losses"].ndim))
            about |= {k: tuple(about[k]) for k in ("names", "lengths", "seeds")} | {"cost": Cost(**about["cost"])}
            return Slice(axes, contents["losses"], contents["filled"], **about)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{name} is not as Slice.save() writes it: {error!r}") from error


def empty_slice(
    axes: Sequence[Sequence[float] | Array], names: Sequence[str], lengths: Sequence[float], seeds: Sequence[int | None]
) -> Slice:
    """A slice without any losses."""
    grid = tuple(np.array(axis, dtype=np.float64) for axis in axes)
    if not all(axis.ndim == 1 and len(axis) and np.isfinite(axis).all() for axis in grid):
        raise ValueError("an axis is a list of one or more finite coordinates")
    shape = tuple(len(axis) for axis in grid)
    losses, filled = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    return Slice(grid, losses, filled, tuple(names), tuple(lengths), tuple(seeds))


def _plain(x: float) -> float | str:
    return x if isfinite(x) else str(x)
