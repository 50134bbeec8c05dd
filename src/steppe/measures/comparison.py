"""Landscapes of several models that can be compared: one radius, at which the sharpest model rises by a stated amount.

Eigenvectors have Euclidean length 1, so that the loss at distance r rises by lambda r^2 / 2 to second order, and the
picture shows the curvature that `lambda_max` measures. Filter normalisation would rotate them: they would not be
eigenvectors any more. Random directions are filter-normalised (Li et al. 2018, section 4), because along a random
direction of length 1 the loss depends on the scale of the weights, which ReLU networks can change at will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, isfinite, log
from typing import Literal

from .._util.terminal import Tick
from .directions import Direction, checked_vector, eigenvectors, random_plane
from .landscape import Slice, coordinates, slice_along
from .objective import Objective

Kind = Literal["eigenvectors", "random"]
RISE = 1.0  # of the loss: one nat of cross-entropy divides the probability of the right class by e
START, LONGEST = 0.01, 1e4  # the search for a radius: it begins at START and ends at LONGEST
PRECISION = 1e-4  # relative, of a radius


def directions_of(objective: Objective, kind: Kind, axes: int = 2, seed: int = 0) -> list[Direction]:
    """The directions of a line or plane: top eigenvectors of length 1, or random ones that are filter-normalised."""
    if kind == "eigenvectors":
        return eigenvectors(objective, axes, seed)
    return list(random_plane(objective, seed))[:axes]


def rise_at(objective: Objective, directions: Sequence[Direction], radius: float) -> float:
    """The largest rise of the loss at the ends of the axes, w + r d and w - r d; infinite if a loss is not finite."""
    losses = [
        objective.loss(checked_vector(objective, direction) * (sign * radius))
        for direction in directions
        for sign in (1, -1)
    ]
    return max(losses) - objective.loss() if all(map(isfinite, losses)) else inf


def radius_of_rise(objective: Objective, directions: Sequence[Direction], rise: float = RISE) -> float:
    """The radius at which the loss has risen by `rise` at one end of the axes; infinite if it never does."""
    from scipy.optimize import brentq

    if not 0 < rise < inf:
        raise ValueError(f"the loss has to rise by more than 0, and by a finite amount, not by {rise}")

    def above(log_radius: float) -> float:
        return min(rise_at(objective, directions, exp(log_radius)), 10 * rise) - rise  # a search needs finite numbers

    low = high = log(START)
    if above(low) < 0:
        while above(high) < 0:
            low, high = high, high + log(2)
            if high > log(LONGEST):
                return inf
    else:
        while above(low) >= 0:
            low, high = low - log(2), low
            if low < -log(LONGEST) * 4:  # the loss jumps at the weights
                return exp(high)
    return exp(float(brentq(above, low, high, xtol=PRECISION)))


def comparable_slices(
    objectives: Sequence[Objective],
    directions: Sequence[Sequence[Direction]],
    points: int = 21,
    rise: float = RISE,
    *,
    radius: float | None = None,
    tick: Tick | None = None,
) -> list[Slice]:
    """The loss around each model, on lines or planes of the same radius.

    The notes of each slice hold the `radius`, the `rise`, and `own_radius`, at which this model's loss rises by it
    (None if it never does). The radius is the smallest of these: that of the sharpest model.

    Parameters
    ----------
    objectives, directions
        The models, and one or two directions for each.
    points
        Points per axis; an odd number includes the weights. 21 and 51 are those of Li et al. 2018.
    rise
        How much the loss of the sharpest model rises at the end of an axis.
    radius
        Use this radius instead; `own_radius` is then not computed.
    tick
        Called as `tick(done, total)` after every point of a slice; None shows a bar on a terminal.

    """
    before = [objective.spent() for objective in objectives]
    own_radii = [
        radius_of_rise(objective, axes, rise) if radius is None else None
        for objective, axes in zip(objectives, directions, strict=True)
    ]
    shared = radius if radius is not None else min(r for r in own_radii if r is not None)
    if not isfinite(shared):
        raise ValueError(
            f"the loss does not rise by {rise:g} within a distance of {LONGEST:g} along these directions: "
            "choose a smaller rise, or a radius"
        )
    slices = []
    for objective, axes, own, start in zip(objectives, directions, own_radii, before, strict=True):
        grid = slice_along(objective, axes, [coordinates(shared, points)] * len(axes), tick=tick)
        notes: dict[str, float | None] = {"radius": shared}
        if own is not None:
            notes |= {"rise": rise, "own_radius": own if isfinite(own) else None}
        slices.append(replace(grid, notes=notes, cost=objective.spent() - start))
        if not grid.complete:
            break
    return slices
