"""The loss on a line or in a plane through the weights, as data that can be saved, stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import isfinite

import numpy as np
import torch

from ..core.vector import Vector
from .directions import Direction, fitting
from .objective import Objective
from .progress import Tick, ticking
from .slices import Array, Slice, blank

Loss = Callable[[tuple[float, ...]], float]  # of the coordinates of a point


def slice_1d(
    objective: Objective,
    direction: Direction | Vector,
    span: float = 1.0,
    points: int = 51,  # and span: as Li et al. 2018 draw them
    *,
    tick: Tick | None = None,
    resume: Slice | None = None,
) -> Slice:
    """The loss at w + x d for `points` values of x from -span to span; an odd number of points has w among them."""
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
    """The loss at w + x a + y b on a grid, x and y from -span to span; span and points may differ between the two."""
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
    """The loss at w plus given multiples of one or two directions, and what it had when stopped by Ctrl-C.

    `tick(done, total)` is called after every point; `resume` is what an earlier call returned that was stopped.
    """
    if len(directions) != len(axes) or not 1 <= len(axes) <= 2:
        raise ValueError(f"a slice has 1 or 2 directions and as many axes, not {len(directions)} and {len(axes)}")
    named = [d if isinstance(d, Direction) else Direction(d) for d in directions]
    vectors = [fitting(objective, d) for d in named]
    lengths = tuple(float(v.norm()) for v in vectors)
    empty = blank(axes, [d.name for d in named], lengths, [d.seed for d in named])
    if len(vectors) == 2:
        empty = replace(empty, cosine=float(vectors[0].dot(vectors[1])) / (lengths[0] * lengths[1]))

    def loss(place: tuple[float, ...]) -> float:
        if not any(place):
            return objective.loss()
        at = vectors[0] * place[0]
        for v, x in zip(vectors[1:], place[1:], strict=True):
            at.add_(v, x)
        return objective.loss(at)

    return fill(objective, empty, loss, tick=tick, resume=resume)


def coordinates(span: float, points: int) -> Array:
    """Equally spaced numbers from -span to span, mirrored bit for bit around their middle."""
    if not span > 0 or not isfinite(span) or points < 2:
        raise ValueError(f"a slice needs a positive span and 2 or more points, not span={span} and points={points}")
    return np.array([(2 * i - (points - 1)) / (points - 1) * span for i in range(points)])


def fill(
    objective: Objective,
    empty: Slice,
    loss: Loss,
    *,
    first: Sequence[tuple[int, ...]] = (),
    tick: Tick | None = None,
    resume: Slice | None = None,
) -> Slice:
    """The slice with loss(coordinates) at every point, those named `first` before the others."""
    start = objective.spent()
    if resume is not None:
        _refuse_another(objective, empty, resume, loss)
    earlier = resume or empty
    losses, filled = earlier.losses.copy(), earlier.filled.copy()
    try:
        with ticking("loss landscape", tick) as told:
            for index in dict.fromkeys([*first, *product(*(range(n) for n in losses.shape))]):
                if not filled[index]:
                    losses[index] = loss(_place(empty, index))
                    filled[index] = True
                    told(int(filled.sum()), filled.size)
    except KeyboardInterrupt:
        if objective.group is not None:  # the other workers wait for this one, and would get its next sum
            raise
    return replace(earlier, losses=losses, filled=filled, cost=earlier.cost + (objective.spent() - start))


def _refuse_another(objective: Objective, empty: Slice, earlier: Slice, loss: Loss) -> None:
    """Raises unless an earlier slice is of this grid and a point of it still has its loss."""
    if [a.tolist() for a in earlier.axes] != [a.tolist() for a in empty.axes]:
        raise ValueError("the slice to resume has another grid: ask for the span and the points that it has")
    if earlier.names != empty.names or not np.allclose(earlier.lengths, empty.lengths, rtol=1e-5, equal_nan=True):
        old, new = (f"{'; '.join(s.names)} (of length {s.lengths})" for s in (earlier, empty))
        raise ValueError(f"the slice to resume is along {old}, and this one along {new}")
    known = np.argwhere(earlier.filled & np.isfinite(earlier.losses)).tolist()
    if known:  # far out, where another direction would show as well as another model
        index = max((tuple(i) for i in known), key=lambda i: sum(abs(x) for x in _place(empty, i)))
        was, now = float(earlier.losses[index]), loss(_place(empty, index))
        precision = max(torch.finfo(p.dtype).eps for p in objective.params.values())
        if not abs(was - now) <= precision**0.5 * max(abs(was), abs(now)):
            raise ValueError(
                f"the slice to resume has loss {was:.6g} at {_place(empty, index)}, where it is {now:.6g} now: the "
                "weights, the data, the loss or the directions are not those it was made with"
            )


def _place(grid: Slice, index: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(axis[i]) for axis, i in zip(grid.axes, index, strict=True))
