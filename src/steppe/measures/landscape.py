"""The loss on a line or in a plane through the weights, as data that can be saved, stopped and resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast
from zipfile import is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray

from .._util.files import atomic_write
from .._util.formats import from_json
from .._util.notebooks import picture
from .._util.terminal import Tick, ticking
from ..core.vector import Vector
from ..data.arrays import read_npz
from .directions import Direction, checked_vector
from .estimate import Cost
from .objective import Objective

Array = NDArray[np.float64]
Loss = Callable[[tuple[float, ...]], float]  # of the coordinates of a point
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

    _repr_mimebundle_ = picture

    def __repr__(self) -> str:
        finite = self.losses[np.isfinite(self.losses)]
        losses = f"losses {finite.min():.4g} to {finite.max():.4g}" if len(finite) else "no finite loss"
        return f"Slice({' x '.join(map(str, self.losses.shape))} points, {losses})"

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


def slice_1d(
    objective: Objective,
    direction: Direction | Vector,
    span: float = 1.0,
    points: int = 51,
    *,
    tick: Tick | None = None,
    resume: Slice | None = None,
) -> Slice:
    """The loss at w + x d for `points` values of x from -span to span.

    Parameters
    ----------
    objective
        The loss and the data.
    direction
        The direction d.
    span, points
        The grid; the defaults are those of Li et al. 2018. An odd number of points includes w.
    tick
        Called as `tick(done, total)` after every point; None shows a bar on a terminal.
    resume
        An incomplete slice of an earlier call.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> direction = steppe.measures.random_direction(objective, seed=0)
    >>> line = steppe.measures.slice_1d(objective, direction, points=3)
    >>> float(line.losses[1])  # at the weights
    1.0

    """
    return slice_along(objective, [direction], [coordinates(span, points)], tick=tick, resume=resume)


def slice_2d(
    objective: Objective,
    a: Direction | Vector,
    b: Direction | Vector,
    span: float | tuple[float, float] = 1.0,
    points: int | tuple[int, int] = 21,
    *,
    tick: Tick | None = None,
    resume: Slice | None = None,
) -> Slice:
    """The loss at w + x a + y b on a grid with x and y from -span to span.

    Parameters
    ----------
    a, b
        The directions.
    span, points
        The grid: one value for both axes, or a pair.
    objective, tick, resume
        As in `slice_1d`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> a, b = (objective.space.vector([e[None]]) for e in torch.eye(2))
    >>> steppe.measures.slice_2d(objective, a, b, points=3).losses.tolist()  # ((1 + x) ** 2 + 4 (1 + y) ** 2) / 2
    [[0.0, 2.0, 8.0], [0.5, 2.5, 8.5], [2.0, 4.0, 10.0]]

    """
    spans = span if isinstance(span, tuple) else (span, span)
    counts = points if isinstance(points, tuple) else (points, points)
    axes = [coordinates(s, n) for s, n in zip(spans, counts, strict=True)]
    return slice_along(objective, [a, b], axes, tick=tick, resume=resume)


def slice_along(
    objective: Objective,
    directions: Sequence[Direction | Vector],
    axes: Sequence[Sequence[float] | Array],
    *,
    tick: Tick | None = None,
    resume: Slice | None = None,
) -> Slice:
    """The loss at w plus multiples of one or two directions; Ctrl-C returns an incomplete slice.

    Parameters
    ----------
    directions, axes
        One or two directions, and the multiples of each.
    objective, tick, resume
        As in `slice_1d`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> steppe.measures.slice_along(objective, [objective.weights], [[-1.0, 0.0, 1.0, 3.0]]).losses.tolist()
    [0.0, 2.5, 10.0, 40.0]

    """
    if len(directions) != len(axes) or not 1 <= len(axes) <= 2:
        raise ValueError(f"a slice has 1 or 2 directions and as many axes, not {len(directions)} and {len(axes)}")
    named = [d if isinstance(d, Direction) else Direction(d) for d in directions]
    vectors = [checked_vector(objective, d) for d in named]
    lengths = tuple(float(v.norm()) for v in vectors)
    grid = empty_slice(axes, [d.name for d in named], lengths, [d.seed for d in named])
    if len(vectors) == 2:
        grid = replace(grid, cosine=float(vectors[0].dot(vectors[1])) / (lengths[0] * lengths[1]))

    def loss(coordinates: tuple[float, ...]) -> float:
        if not any(coordinates):
            return objective.loss()
        at = vectors[0] * coordinates[0]
        for v, x in zip(vectors[1:], coordinates[1:], strict=True):
            at.add_(v, x)
        return objective.loss(at)

    return evaluate_slice(objective, grid, loss, tick=tick, resume=resume)


def coordinates(span: float, points: int) -> Array:
    """Equally spaced numbers from -span to span, symmetric bit for bit."""
    if not span > 0 or not isfinite(span) or points < 2:
        raise ValueError(f"a slice needs a positive span and 2 or more points, not span={span} and points={points}")
    return np.array([(2 * i - (points - 1)) / (points - 1) * span for i in range(points)])


def evaluate_slice(
    objective: Objective,
    empty: Slice,
    loss: Loss,
    *,
    first: Sequence[tuple[int, ...]] = (),
    tick: Tick | None = None,
    resume: Slice | None = None,
) -> Slice:
    """Fill a slice with loss(coordinates) at every point, those at the indices `first` before the others."""
    start = objective.spent()
    if resume is not None:
        _check_resumable(objective, empty, resume, loss)
    earlier = resume or empty
    losses, filled = earlier.losses.copy(), earlier.filled.copy()
    try:
        with ticking("loss landscape", tick) as report:
            for index in dict.fromkeys([*first, *product(*(range(n) for n in losses.shape))]):
                if not filled[index]:
                    losses[index] = loss(_place(empty, index))
                    filled[index] = True
                    report(int(filled.sum()), filled.size)
    except KeyboardInterrupt:
        if objective.group is not None:  # the other workers wait for this one
            raise
    return replace(earlier, losses=losses, filled=filled, cost=earlier.cost + (objective.spent() - start))


def _check_resumable(objective: Objective, empty: Slice, earlier: Slice, loss: Loss) -> None:
    """Raise unless an earlier slice has this grid and one of its points still has its loss."""
    if [a.tolist() for a in earlier.axes] != [a.tolist() for a in empty.axes]:
        raise ValueError("the slice to resume has another grid: use its span and points")
    if earlier.names != empty.names or not np.allclose(earlier.lengths, empty.lengths, rtol=1e-5, equal_nan=True):
        old, new = (f"{'; '.join(s.names)} (of length {s.lengths})" for s in (earlier, empty))
        raise ValueError(f"the slice to resume is along {old}, and this one along {new}")
    finite = np.argwhere(earlier.filled & np.isfinite(earlier.losses)).tolist()
    if finite:  # far from the weights, where another direction shows as well as another model
        index = max((tuple(i) for i in finite), key=lambda i: sum(abs(x) for x in _place(empty, i)))
        was, now = float(earlier.losses[index]), loss(_place(empty, index))
        precision = max(torch.finfo(p.dtype).eps for p in objective.params.values())
        if not abs(was - now) <= precision**0.5 * max(abs(was), abs(now)):
            raise ValueError(
                f"the slice to resume has loss {was:.6g} at {_place(empty, index)}, where it is {now:.6g} now: the "
                "weights, the data, the loss or the directions are not those it was made with"
            )


def _place(grid: Slice, index: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(axis[i]) for axis, i in zip(grid.axes, index, strict=True))


def _plain(x: float) -> float | str:
    return x if isfinite(x) else str(x)
